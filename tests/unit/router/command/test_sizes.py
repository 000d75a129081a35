"""What the router prints of its workers' settings at start."""

from __future__ import annotations

from router.command.model_service import sizes
from rpc.baton.v1 import worker_pb2


def test_workers_with_equal_settings_share_a_line() -> None:
    workers = [worker_pb2.WorkerInfo(worker_id="prefill-0", settings="max_prefill_tokens=none")]
    workers += [worker_pb2.WorkerInfo(worker_id=f"decode-{k}", settings="a=1") for k in range(3)]
    assert sizes(workers) == ["prefill-0: max_prefill_tokens=none", "decode-0, decode-1, decode-2: a=1"]
    many = [worker_pb2.WorkerInfo(worker_id=f"decode-{k}", settings="a=1") for k in range(9)]
    assert sizes(many) == ["9 workers from decode-0 on: a=1"]
