"""Probe of a worker whose session is silent, over a call of its own."""

from __future__ import annotations

from typing import Final

import grpc

from router.dispatch.workers.events import WorkerLost
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc

_PROBE_S: Final = 5.0


async def why_lost(stub: worker_pb2_grpc.WorkerStub, epoch: int) -> WorkerLost | None:
    """None if the worker of this epoch answers; otherwise the reason for the loss."""
    while True:
        try:
            info = await stub.Describe(worker_pb2.DescribeRequest(), timeout=_PROBE_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                continue  # until the grace period ends
            return WorkerLost(f"silent, and then: {cause_of(error)}")
        if info.epoch != epoch:
            return WorkerLost("replaced by another process")
        return None


def cause_of(error: grpc.aio.AioRpcError) -> str:
    return error.details() or error.code().name
