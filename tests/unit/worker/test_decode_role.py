"""A decode worker's queue of handoffs that wait for pages."""

from __future__ import annotations

from unittest.mock import Mock

from decode_worker.decode_role import DecodeRole
from engine.engine import Engine
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.test_engine import make_engine, make_request
from worker.outbox import Outbox

SESSION = Mock()


def make_role(engine: Engine) -> DecodeRole:
    role = DecodeRole(engine, Outbox(), Mock(), lambda: 0.0, Mock())
    role.open(SESSION)
    return role


def hand_over(role: DecodeRole, request_id: int, prompt: list[int]) -> None:
    work = worker_pb2.Work(request_id=request_id, prompt=prompt, sampling=sampling_pb2.Sampling(max_tokens=4))
    reserve = worker_pb2.Reserve(work=work, timeout_s=5.0)
    role.handle(SESSION, worker_pb2.Command(reserve=reserve))


def lent(role: DecodeRole) -> list[int]:
    """Ids of the handoffs that got pages."""
    receiver: Mock = role._receiver  # type: ignore[assignment]
    return [call.args[0] for call in receiver.reserve.call_args_list]


def failures(role: DecodeRole) -> list[tuple[int, int]]:
    SESSION.send.reset_mock()
    role.outbox.flush(0)
    batches = [call.args[0] for call in SESSION.send.call_args_list]
    return [(failed.request_id, failed.code) for batch in batches for failed in batch.failed]


def test_the_next_handoff_gets_its_pages_right_after_one_that_was_refused() -> None:
    role = make_role(make_engine(num_pages=8))
    hand_over(role, 1, [5] * 40)  # more than the pool holds
    hand_over(role, 2, [5] * 9)
    role.tick(0.0)
    assert failures(role) == [(1, worker_pb2.FAILURE_CODE_INVALID)]
    assert lent(role) == [2]


def test_a_handoff_that_has_to_wait_is_not_passed_by_smaller_ones() -> None:
    engine = make_engine(num_pages=8)
    holder = make_request(9, list(range(20)))
    reservation = engine.reserve(holder)
    assert reservation is not None
    role = make_role(engine)
    hand_over(role, 1, [5] * 24)
    hand_over(role, 2, [6] * 4)
    role.tick(0.0)
    assert lent(role) == []
    engine.free_reservation(reservation)
    role.tick(0.0)
    assert lent(role) == [1, 2]
    assert failures(role) == []


def test_a_handoff_that_was_aborted_while_it_waited_is_skipped() -> None:
    role = make_role(make_engine(num_pages=8))
    hand_over(role, 1, [5] * 9)
    hand_over(role, 2, [6] * 9)
    role.abort(1)
    role.tick(0.0)
    assert lent(role) == [2]
