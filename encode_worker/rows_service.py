"""gRPC service from which other workers fetch rows of images: `baton.v1.Rows`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc

from encode_worker.handouts import Handouts, NoRows
from encode_worker.rows import TICKET_BYTES, parts_of
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc

_LONGEST_S: Final = 300.0
"""For a fetch, whose client has a deadline of its own."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RowsService(worker_pb2_grpc.RowsServicer):
    def __init__(self, handouts: Handouts) -> None:
        self._handouts = handouts

    async def Fetch(  # noqa: N802
        self, request: worker_pb2.FetchRows, context: Context
    ) -> AsyncIterator[worker_pb2.RowsPart]:
        """Answered when the image is encoded."""
        if len(request.ticket) != TICKET_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a ticket has {TICKET_BYTES} bytes")
        try:
            async with asyncio.timeout(_LONGEST_S):
                encoded = await asyncio.wrap_future(self._handouts.take(request.ticket))
            for part in parts_of(encoded.item, encoded.rows, encoded.weights, request.ticket):
                yield part
        except (NoRows, TimeoutError) as error:
            reason = str(error) or "it was not encoded in time"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        finally:
            self._handouts.taken(request.ticket)


def register(handouts: Handouts, server: grpc.aio.Server) -> None:
    worker_pb2_grpc.add_RowsServicer_to_server(RowsService(handouts), server)  # type: ignore[no-untyped-call]
