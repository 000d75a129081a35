"""A KV transport that was reopened: every router learns how the pool is reached now."""

from __future__ import annotations

from unittest.mock import Mock

from kv_transfer import Peer, Reopened
from rpc.baton.v1 import worker_pb2
from tests.unit.worker.handlers import handled

PEER = Peer("prefill-0~1", 7, b"there", 0, 64, 8, 0, "layout")


def peers(session: Mock) -> list[str]:
    batches: list[worker_pb2.EventBatch] = [call.args[0] for call in session.send.call_args_list]
    return [batch.peer.name for batch in batches if batch.HasField("peer")]


def test_a_reopened_transport_is_reported_once_to_every_session() -> None:
    worker, early, late = handled(Mock(**{"kv.contents.return_value": []})), Mock(), Mock()
    worker.handler.open(early)
    worker.outbox.flush(1)
    worker.handler.on_transfer(Reopened(PEER))
    worker.outbox.flush(2)
    worker.handler.open(late)
    worker.outbox.flush(3)
    assert peers(early) == peers(late) == [PEER.name]
