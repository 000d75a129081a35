"""The queue of handoffs that wait for pages."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from engine.loop.engine import Engine
from kv_transfer import ReceiveFailed
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.worker.handlers import Handled, handled

SESSION = Mock()


def make_worker(engine: Engine) -> Handled:
    worker = handled(engine)
    worker.handler.open(SESSION)
    return worker


def hand_off(worker: Handled, request_id: int, prompt: list[int]) -> None:
    work = worker_pb2.Work(
        request_id=request_id, prompt=prompt, sampling=sampling_pb2.SamplingParams(max_tokens=4)
    )
    reserve = worker_pb2.Reserve(work=work, timeout_s=5.0)
    worker.handler.handle(SESSION, worker_pb2.Command(reserve=reserve), 0.0)


def lent(worker: Handled) -> list[int]:
    """Ids of the handoffs that got pages."""
    return [call.args[0] for call in worker.transfer.receiver.reserve.call_args_list]


def failures(worker: Handled) -> list[tuple[int, int]]:
    SESSION.send.reset_mock()
    worker.outbox.flush(0)
    batches = [call.args[0] for call in SESSION.send.call_args_list]
    return [(failed.request_id, failed.code) for batch in batches for failed in batch.failed]


def test_the_next_handoff_gets_its_pages_right_after_one_that_was_refused() -> None:
    worker = make_worker(make_engine(num_pages=8))
    hand_off(worker, 1, [5] * 40)  # more than the pool holds
    hand_off(worker, 2, [5] * 9)
    worker.handler.tick(0.0)
    assert failures(worker) == [(1, worker_pb2.FAILURE_CODE_INVALID)]
    assert lent(worker) == [2]


def test_smaller_handoffs_do_not_overtake_one_that_waits_for_pages() -> None:
    engine = make_engine(num_pages=8)
    holder = make_request(9, list(range(20)))
    reservation = engine.reserve(holder)
    assert reservation is not None
    worker = make_worker(engine)
    hand_off(worker, 1, [5] * 24)
    hand_off(worker, 2, [6] * 4)
    worker.handler.tick(0.0)
    assert lent(worker) == []
    engine.kv.free_reservation(reservation)
    worker.handler.tick(0.0)
    assert lent(worker) == [1, 2]
    assert failures(worker) == []


def test_a_handoff_that_was_aborted_while_it_waited_is_skipped() -> None:
    worker = make_worker(make_engine(num_pages=8))
    hand_off(worker, 1, [5] * 9)
    hand_off(worker, 2, [6] * 9)
    worker.handler.abort(1)
    worker.handler.tick(0.0)
    assert lent(worker) == [2]


def test_handoffs_aborted_while_they_waited_take_no_room_in_the_queue() -> None:
    engine = make_engine(num_pages=8, max_waiting_requests=2)
    assert engine.reserve(make_request(9, list(range(20)))) is not None
    worker = make_worker(engine)
    hand_off(worker, 1, [5] * 24)
    hand_off(worker, 2, [6] * 4)
    worker.handler.tick(0.0)
    hand_off(worker, 3, [6] * 4)
    assert failures(worker) == [(3, worker_pb2.FAILURE_CODE_OVERLOADED)]
    worker.handler.abort(2)
    hand_off(worker, 4, [6] * 4)
    assert failures(worker) == []


@pytest.mark.parametrize(
    ("by_sender", "code"),
    [(True, worker_pb2.FAILURE_CODE_SENDER), (False, worker_pb2.FAILURE_CODE_HANDOFF)],
)
def test_a_handoff_that_its_sender_gave_up_is_no_failure_of_this_worker(
    by_sender: bool, code: worker_pb2.FailureCode
) -> None:
    worker = make_worker(make_engine(num_pages=8))
    hand_off(worker, 1, [5] * 9)
    worker.handler.tick(0.0)
    worker.handler.on_transfer(ReceiveFailed(1, "test", by_sender))
    assert failures(worker) == [(1, code)]
