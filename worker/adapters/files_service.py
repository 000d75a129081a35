"""gRPC service from which other workers fetch adapters that are loaded here: `baton.v1.AdapterFiles`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.peer_calls import ticket_for
from worker.adapters.held_files import HeldFiles

_PART: Final = 1 << 21

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class AdapterFilesService(worker_pb2_grpc.AdapterFilesServicer):
    def __init__(self, key: bytes, files: HeldFiles) -> None:
        """`key`: of the tickets."""
        self._key = key
        self._files = files

    async def Fetch(  # noqa: N802
        self, request: worker_pb2.FetchAdapter, context: Context
    ) -> AsyncIterator[worker_pb2.AdapterPart]:
        """The files as they are now: the client verifies them."""
        if not hmac.compare_digest(request.ticket, ticket_for(self._key, request.digest)):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the ticket is not for this adapter")
        files = self._files.opened(request.digest)
        if files is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the adapter is not here")
        with files.weights:
            yield worker_pb2.AdapterPart(config=files.config, bytes=files.num_bytes)
            offset = 0
            while data := await asyncio.to_thread(files.read, offset, _PART):
                yield worker_pb2.AdapterPart(data=data)
                offset += len(data)


def register(key: bytes, files: HeldFiles, server: grpc.aio.Server) -> None:
    service = AdapterFilesService(key, files)
    worker_pb2_grpc.add_AdapterFilesServicer_to_server(service, server)  # type: ignore[no-untyped-call]
