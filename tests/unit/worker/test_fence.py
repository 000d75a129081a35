"""What a role does with a fence, and with pages that nobody will ever fill."""

from __future__ import annotations

from unittest.mock import Mock

from decode_worker.decode_role import DecodeRole
from engine.core.kv_manager import Reservation
from kv_transfer import Drained, ReceiveFailed
from prefill_worker.prefill_role import PrefillRole
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.role import Role

FENCE = worker_pb2.Command(fence=worker_pb2.Fence(worker_id="prefill-0", epoch=7, reason="no power"))


def test_a_fence_reaches_the_side_that_moves_kv() -> None:
    parts = Mock(), Mock(), Mock(), lambda: 0.0
    sender, receiver = Mock(), Mock()
    for role in (Role(*parts), PrefillRole(*parts, sender, 60.0), DecodeRole(*parts, receiver)):
        role.handle(Mock(), FENCE)
    sender.fence.assert_called_once_with(7, "no power")
    receiver.fence.assert_called_once_with(7, "no power")


def test_a_decode_worker_with_pages_in_quarantine_is_idle_so_that_its_pages_are_checked() -> None:
    engine = Mock()
    engine.config.max_waiting_requests = 8
    engine.reserve.side_effect = lambda request: Reservation(request, 0, [3])
    role = DecodeRole(engine, Mock(), Mock(), lambda: 0.0, Mock())
    work = worker_pb2.Work(request_id=1, prompt=[5, 6], sampling=sampling_pb2.Sampling(max_tokens=4))
    role.handle(Mock(), worker_pb2.Command(reserve=worker_pb2.Reserve(work=work, timeout_s=5.0)))
    role.tick(0.0)
    assert not role.idle
    role.on_transfer(ReceiveFailed(1, "the sender does not answer"))
    (reservation,) = engine.quarantine.call_args.args
    assert role.idle
    engine.free_reservation.assert_not_called()
    role.on_transfer(Drained(1))
    engine.free_reservation.assert_called_once_with(reservation)
