"""A worker executes a fence, and frees pages that will never be filled."""

from __future__ import annotations

from unittest.mock import Mock

from engine.kv.manager.reservations import Reservation
from kv_transfer import Drained, ReceiveFailed
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.worker.handlers import handled
from worker.request_handler import RequestHandler
from worker.session.answers import Answers

FENCE = worker_pb2.Command(fence=worker_pb2.Fence(worker_id="prefill-0", epoch=7, reason="no power"))


def test_a_fence_reaches_the_kv_endpoint_once() -> None:
    worker = handled(Mock())
    worker.handler.handle(Mock(), FENCE, 0.0)
    worker.transfer.fence.assert_called_once_with(7, "no power")


def test_a_worker_without_a_transport_has_no_peers_to_fence() -> None:
    RequestHandler(Mock(), Answers(Mock(), Mock()), lambda: 0.0, Mock()).handle(Mock(), FENCE, 0.0)


def test_a_worker_with_pages_in_quarantine_is_idle_so_that_its_pages_are_checked() -> None:
    engine = Mock()
    engine.config.scheduler.max_waiting_requests = 8
    engine.reserve.side_effect = lambda request, room: Reservation(request, 0, [3])
    handler = handled(engine, Mock()).handler
    work = worker_pb2.Work(request_id=1, prompt=[5, 6], sampling=sampling_pb2.SamplingParams(max_tokens=4))
    handler.handle(Mock(), worker_pb2.Command(reserve=worker_pb2.Reserve(work=work, timeout_s=5.0)), 0.0)
    handler.tick(0.0)
    assert not handler.idle
    handler.on_transfer(ReceiveFailed(1, "the sender does not answer"))
    (reservation,) = engine.kv.quarantine.call_args.args
    assert handler.idle
    engine.kv.free_reservation.assert_not_called()
    handler.on_transfer(Drained(1))
    engine.kv.free_reservation.assert_called_once_with(reservation, 0)
