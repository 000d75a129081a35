"""Pages of a worker's pool that a request takes, from what the worker tells of its pool."""

from __future__ import annotations

from common.kv_groups import RequestPages
from rpc.baton.v1 import worker_pb2


def request_pages(info: worker_pb2.WorkerInfo) -> RequestPages:
    """Pages that a request takes on this worker."""
    size = max(info.page_size, 1)
    return RequestPages(size, tuple(info.most_blocks)) if info.most_blocks else RequestPages(size)
