"""The adapters that one worker process has loaded, as a router knows them, and the calls that change them."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.status import translate


class WorkerAdapters:
    def __init__(self, worker_id: str, stub: worker_pb2_grpc.WorkerStub) -> None:
        self._worker_id = worker_id
        self._stub = stub
        self._digests: set[bytes] = set()
        self.uses: Sequence[worker_pb2.AdapterUse] = ()
        """Every loaded adapter, with its requests, as the worker reported last."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def discard(self, digest: bytes) -> None:
        """The worker has refused a request because it lacks this adapter."""
        self._digests.discard(digest)

    def report(self, uses: Sequence[worker_pb2.AdapterUse]) -> None:
        """A report may be older than the answer to a call: an adapter is gone if it was in the one before."""
        if uses or self.uses:
            had, has = ({use.digest for use in known} for known in (self.uses, uses))
            self._digests = (self._digests - (had - has)) | (has - had)
            self.uses = uses

    async def load(self, name: str, path: str, timeout_s: float = 300.0) -> worker_pb2.AdapterInfo:
        """With an `error` if the worker did not load it. Raises RpcError."""
        request = worker_pb2.LoadAdapterRequest(name=name, path=path)
        try:
            info: worker_pb2.AdapterInfo = await self._stub.LoadAdapter(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._worker_id) from None
        if not info.error:
            self._digests = (self._digests - set(info.unloaded)) | {info.digest}
        return info

    async def unload(self, digest: bytes, timeout_s: float = 30.0) -> worker_pb2.AdapterInfo:
        """With an `error` while requests use it. Raises RpcError."""
        request = worker_pb2.UnloadAdapterRequest(digest=digest)
        try:
            info: worker_pb2.AdapterInfo = await self._stub.UnloadAdapter(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._worker_id) from None
        if not info.error:
            self.discard(digest)
        return info
