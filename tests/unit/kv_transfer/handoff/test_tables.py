"""What can be read off the two state tables, for every path through them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from kv_transfer.handoff.receiver_states import RECEIVING, ReceiveAction, ReceiveEvent, Receiving
from kv_transfer.handoff.sender_states import SENDING, SendAction, SendEvent, Sending
from kv_transfer.handoff.state_machine import StateMachine, Table


def paths(table: Table[Enum, Enum, Enum], state: Enum, length: int = 8) -> Iterator[tuple[Enum, list[Enum]]]:
    """The last state and all actions of every way through a table, without going in circles."""
    yield state, []
    if length == 0:
        return
    for (begin, _), (end, actions) in table.items():
        if begin is state and end is not state:
            for last, rest in paths(table, end, length - 1):
                yield last, [*actions, *rest]


def test_every_live_state_of_both_sides_has_a_deadline() -> None:
    for sending in Sending:
        assert ((sending, SendEvent.DEADLINE) in SENDING) == (sending is not Sending.CLOSED)
    for receiving in Receiving:
        over = receiving in (Receiving.READY, Receiving.CLOSED)
        assert ((receiving, ReceiveEvent.DEADLINE) in RECEIVING) == (not over)


def test_every_handoff_ends_exactly_once_at_its_sender() -> None:
    for last, actions in paths(SENDING, Sending.OPEN):  # type: ignore[arg-type]
        ends = actions.count(SendAction.HAND_OFF) + actions.count(SendAction.FAIL)
        if last is Sending.CLOSED:
            assert ends == 1
        elif last is not Sending.ABANDONED:
            assert ends == 0


def test_a_sender_with_a_ticket_ends_by_a_message_to_the_receiver_or_by_its_loss() -> None:
    told = {SendAction.SEND_DRAIN, SendAction.HAND_OFF}
    for (begin, event), (end, actions) in SENDING.items():
        has_ticket = begin not in (Sending.OPEN, Sending.COMPUTED)
        if end is Sending.CLOSED and has_ticket and event is not SendEvent.PEER_LOST:
            assert told & set(actions), (begin, event)


def test_a_sender_sends_drain_only_when_no_write_is_in_flight() -> None:
    quiet = {Sending.OPEN, Sending.COMPUTED, Sending.CONFIRMING}  # nothing was started, or all is done
    for (begin, event), (_, actions) in SENDING.items():
        if SendAction.SEND_DRAIN in actions or SendAction.SEND_FINISH in actions:
            assert begin in quiet or event is SendEvent.IDLE


def test_a_receiver_reports_either_ready_or_failed_and_then_free() -> None:
    for last, actions in paths(RECEIVING, Receiving.RESERVED):  # type: ignore[arg-type]
        reports = [a for a in actions if a not in (ReceiveAction.SEND_CONFIRM, ReceiveAction.SEND_REVOKE)]
        if last is Receiving.READY:
            assert reports == [ReceiveAction.ACCEPT]
        elif last is Receiving.CLOSED:
            assert reports == [ReceiveAction.FAIL, ReceiveAction.FREE_PAGES]
        elif last is Receiving.DRAINING:
            assert reports == [ReceiveAction.FAIL]
        else:
            assert reports == []


def test_pages_are_freed_only_by_drain_peer_loss_or_closed_connections() -> None:
    for (_, event), (_, actions) in RECEIVING.items():
        if ReceiveAction.FREE_PAGES in actions:
            assert event in (ReceiveEvent.DRAIN, ReceiveEvent.PEER_LOST, ReceiveEvent.CUT_OFF)


def test_an_aborted_handoff_never_becomes_ready() -> None:
    for (begin, _), (end, _) in RECEIVING.items():
        assert not (begin is Receiving.DRAINING and end is Receiving.READY)


def test_an_unexpected_event_changes_nothing() -> None:
    machine = StateMachine(SENDING, Sending.OPEN, 0.0, 5.0, {})
    assert machine.on(SendEvent.CONFIRM, 1.0) is None
    assert machine.state is Sending.OPEN
    assert machine.deadline == 5.0


def test_a_state_with_its_own_timeout_restarts_its_deadline_whenever_it_acts() -> None:
    machine = StateMachine(RECEIVING, Receiving.RESERVED, 0.0, 5.0, {Receiving.DRAINING: 0.25})
    machine.on(ReceiveEvent.DEADLINE, 5.0)
    assert machine.deadline == 5.25
    assert machine.on(ReceiveEvent.DEADLINE, 6.0) == (ReceiveAction.SEND_REVOKE,)
    assert machine.deadline == 6.25
    assert machine.on(ReceiveEvent.ABORT, 6.5) == ()
    assert machine.deadline == 6.25, "nothing was sent"


def test_progress_extends_the_deadline_up_to_a_limit() -> None:
    machine = StateMachine(SENDING, Sending.OPEN, 0.0, 5.0, {})
    machine.progress(4.0)
    assert machine.deadline == 9.0
    machine.progress(6.0, timeout_s=2.0)  # the receiver is less patient
    assert machine.deadline == 8.0
    for now in range(7, 100):
        machine.progress(float(now))
    assert machine.deadline == 50.0


def test_progress_does_not_extend_a_state_with_its_own_timeout() -> None:
    machine = StateMachine(RECEIVING, Receiving.RESERVED, 0.0, 5.0, {Receiving.DRAINING: 0.25})
    machine.on(ReceiveEvent.ABORT, 1.0)
    machine.progress(1.2)
    assert machine.deadline == 1.25
