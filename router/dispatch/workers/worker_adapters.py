"""The adapters that one worker process has loaded, as a router knows them, and the calls that change them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import grpc

from router.placement import AdapterPlace, LoadTimes
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.peer_calls import ticket_for
from rpc.status import translate

_AGAIN_S: Final = 10.0
"""Before a worker that could not load an adapter is asked again."""
_SOURCES: Final = 2
"""Workers from which one may fetch an adapter; the second in case that the first fails."""


class WorkerAdapters:
    def __init__(
        self,
        worker_id: str,
        stub: worker_pb2_grpc.WorkerStub,
        info: worker_pb2.WorkerInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id = worker_id
        self._stub = stub
        self._info = info
        self._clock = clock
        self.peers: Callable[[], Iterable[WorkerAdapters]] = tuple
        """The adapters of the other connected workers."""
        self._digests: set[bytes] = set()
        self._missing: set[bytes] = set()
        """Adapters that the latest report lacks."""
        self._brought: set[bytes] = set()
        """Adapters that the worker loads, or has loaded, for a request that was sent."""
        self._refused: dict[bytes, float] = {}
        """When it may be asked again for an adapter that it could not load."""
        self.sizes: Final[dict[bytes, int]] = {}
        """Bytes of adapters that it has or had in host memory."""
        self.load_times: Final = LoadTimes()
        self.uses: Sequence[worker_pb2.AdapterUse] = ()
        """Every loaded adapter, with its requests, as the worker reported last."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def may_use(self, digest: bytes) -> bool:
        """Whether a request with the adapter may be sent: the worker loads it if it lacks it."""
        return digest in self._digests or self._clock() >= self._refused.get(digest, 0.0)

    def may_hold(self, digest: bytes) -> bool:
        return digest in self._digests or digest in self._brought

    def brought(self, digest: bytes) -> None:
        """A request with the adapter is sent, for which the worker loads it."""
        if digest not in self._digests:
            self._brought.add(digest)

    def refused(self, digest: bytes) -> None:
        """The worker could not load it."""
        self.discard(digest)
        self._refused[digest] = self._clock() + _AGAIN_S

    def discard(self, digest: bytes) -> None:
        """The worker does not have it, and does not load it."""
        self._digests.discard(digest)
        self._brought.discard(digest)

    def report(self, uses: Sequence[worker_pb2.AdapterUse]) -> None:
        """A report may be older than the answer to a call: an adapter is gone if two in a row lack it."""
        if uses or self._digests:
            has = {use.digest for use in uses}
            missing = self._digests - has
            self._digests = (self._digests - (missing & self._missing)) | has
            self._missing = missing
            self._brought -= has
            self.sizes.update((use.digest, use.host_bytes) for use in uses)
            self.uses = uses

    def place(self, digest: bytes, num_bytes: int) -> AdapterPlace:
        """What the worker does before it computes with the adapter. `num_bytes`: its size. O(adapters)."""
        used = {use.digest for use in self.uses if use.running or use.waiting or use.digest == digest}
        if any(use.digest == digest and use.on_device for use in self.uses):
            return AdapterPlace()
        is_here = digest in self._digests or digest in self._brought
        return AdapterPlace(
            load_s=0.0 if is_here else self.load_times.seconds(num_bytes),
            waits_for_slot=len(used - {digest}) >= self._info.max_loras,
        )

    def offer(self, digest: bytes) -> worker_pb2.AdapterSource | None:
        """Where other workers may fetch an adapter; None: this worker does not have it."""
        info = self._info
        if digest not in self._digests or not info.adapters_address:
            return None
        ticket = ticket_for(info.adapters_key, digest)
        return worker_pb2.AdapterSource(
            address=info.adapters_address, certificate=info.certificate, ticket=ticket
        )

    def sources(self, digest: bytes) -> list[worker_pb2.AdapterSource]:
        """Workers from which this one may fetch an adapter, if it lacks it. O(workers)."""
        if not digest or digest in self._digests:
            return []
        offers = [offer for peer in self.peers() if (offer := peer.offer(digest)) is not None]
        return random.sample(offers, min(_SOURCES, len(offers)))

    async def load(
        self, name: str, path: str, digest: bytes = b"", timeout_s: float = 300.0
    ) -> worker_pb2.AdapterInfo:
        """With an `error` if the worker did not load it. `digest`: of the only content that is wanted, which
        the worker may also fetch from others. Raises RpcError."""
        request = worker_pb2.LoadAdapterRequest(
            name=name, path=path, digest=digest, sources=self.sources(digest)
        )
        try:
            info: worker_pb2.AdapterInfo = await self._stub.LoadAdapter(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._worker_id) from None
        if not info.error:
            self._digests = (self._digests - set(info.unloaded)) | {info.digest}
            self._refused.pop(info.digest, None)
            self.sizes[info.digest] = info.host_bytes
            self.load_times.observe(info.host_bytes, info.load_s)
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
