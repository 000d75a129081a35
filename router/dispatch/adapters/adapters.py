"""The life cycle of a model's adapters: staged on every worker, then visible at once, at all routers.

A load stages the content on all workers that are connected, compares the digests, and publishes the name. It
is complete when every router admits requests by it. A worker that connects later, or was restarted, gets all
visible adapters; requests of an adapter go to workers that have it. A content whose name is gone, or has
another content, is unloaded from the workers when no router has a request that was admitted with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from common.background import repeat
from router.dispatch.adapters.table import (
    NO_ADAPTER,
    Adapter,
    AdapterTable,
    Catalogue,
    Digest,
    Names,
    RouterView,
    Use,
)
from router.dispatch.agreement import Agreement, Shared
from router.dispatch.workers.every_worker import NotEverywhere, WorkerRefused, on_every_worker
from router.dispatch.workers.member import Member
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import InvalidRequest, NotFound, Unavailable
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_SOON_S: Final = 0.05
"""Interval of looking for what a call waits for."""
_UNLOADED_S: Final = 10.0
"""For the workers to unload an adapter that no request uses."""
_MAX_NAME: Final = 256


class AdapterNotLoaded(InvalidRequest):
    """A worker cannot use the adapter; the message says which worker, and why."""

    default_code = "adapter_not_loaded"


class ServedAdapters:
    """The adapters of one model, for one router. `run` keeps workers and routers in step."""

    def __init__(
        self,
        registry: Registry,
        shared: Shared[Catalogue, RouterView],
        base: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`base`: name of the model, which no adapter may have."""
        self.table: Final = AdapterTable()
        self.base: Final = base
        self._registry = registry
        self._agreement = Agreement(
            registry, shared, lambda: self.table.catalogue, self._adopt, self.table.view, clock
        )
        self._clock = clock
        self._changing = asyncio.Lock()

    # ------------------------------------------------------------------------------ requests

    @property
    def names(self) -> Names:
        return self.table.catalogue.adapters

    def use(self, name: str) -> Use:
        """Admit a request with the adapter. Raises NotFound."""
        use = self.table.use(name)
        if use is None:
            raise NotFound(
                f"The adapter {name[:100]!r} does not exist.", param="model", code="model_not_found"
            )
        return use

    # ------------------------------------------------------------------------------ changes

    async def load(self, name: str, path: str, *, in_place: bool = False) -> Adapter:
        """Stage the adapter on every worker, and make it visible at every router.

        `in_place`: a name that there is may get another content; running answers keep theirs. Raises
        InvalidRequest, NotFound if there is no such folder, AdapterNotLoaded, and Unavailable.
        """
        self._check_name(name)
        async with self._changing:
            await self._agreement.look()
            self._check_new(name, in_place)
            adapter = await self._staged(name, path)
            try:
                await self._agreement.publish(lambda known: _with(known, adapter, in_place))
            finally:
                self.table.release(adapter.digest)
            _log.info("adapter %s: %s, digest %s", name, path, adapter.digest.hex()[:16])
            return adapter

    async def unload(self, name: str) -> None:
        """Admit no further request of the adapter; returns when no worker holds it any more.

        Answers that were admitted with it end first. Raises NotFound, and AdapterNotLoaded if a worker cannot
        unload it.
        """
        async with self._changing:
            await self._agreement.look()
            adapter = self.table.find(name)
            if adapter is None:
                raise NotFound(
                    f"The adapter {name[:100]!r} does not exist.", param="lora_name", code="model_not_found"
                )
            await self._agreement.publish(
                lambda known: known.without(name) if name in known.adapters else None
            )
        ends = self._clock() + _UNLOADED_S
        while adapter.digest in self.table.known:
            try:
                if self._is_used(adapter.digest):
                    ends = self._clock() + _UNLOADED_S
                await self._unload_unused()
            except NotEverywhere as error:  # it may not have heard yet that its last answer has ended
                if self._clock() >= ends:
                    raise AdapterNotLoaded(f"The adapter is not unloaded everywhere: {error}.") from None
            await asyncio.sleep(_SOON_S)
            if adapter.digest in self.table.catalogue.digests:
                return  # under another name, or loaded again
        _log.info("adapter %s is unloaded", name)

    def _is_used(self, digest: Digest) -> bool:
        """Whether requests of any router use it, as the workers report."""
        return any(
            use.digest == digest and use.running + use.waiting
            for session in self._registry.computing()
            for use in session.adapters.uses
        )

    def _check_name(self, name: str) -> None:
        if not name or len(name) > _MAX_NAME or not name.isprintable():
            raise InvalidRequest(
                f"lora_name must have 1 to {_MAX_NAME} printable characters.", param="lora_name"
            )
        if name == self.base:
            raise InvalidRequest(f"{name!r} is the name of the model.", param="lora_name")

    def _check_new(self, name: str, in_place: bool) -> None:
        if not in_place and self.table.find(name) is not None:
            raise InvalidRequest(
                f"The adapter {name!r} is loaded already; unload it first, or use load_inplace.",
                param="lora_name",
                code="adapter_exists",
            )

    async def _staged(self, name: str, path: str) -> Adapter:
        """Load it on every worker, and claim its content. What is left of a refused one is unloaded later."""
        if not self._registry.computing():
            raise Unavailable("no worker is connected", retry_after_s=1.0, public=True)
        found: dict[str, worker_pb2.AdapterInfo] = {}
        try:
            await self._stage(name, path, found)
        except BaseException:
            self._release(found.values())
            raise
        info, *others = found.values()
        self._release(others)
        return Adapter(name, path, info.digest, info.rank, int(time.time()), tuple(info.invocation))

    async def _stage(self, name: str, path: str, found: dict[str, worker_pb2.AdapterInfo]) -> None:
        """Adds what each worker has loaded to `found`, and claims it.

        Workers that do not see the folder get a copy from those that do.
        """
        blind = await self._stage_on(self._registry.computing_members(), name, path, found)
        digests = {info.digest for info in found.values()}
        if len(digests) > 1:
            each = ", ".join(f"{worker} {info.digest.hex()[:16]}" for worker, info in found.items())
            raise AdapterNotLoaded(
                f"{path} has different contents on the workers (digests: {each}).", param="lora_path"
            )
        await self._stage_on(blind, name, path, found, *digests)

    async def _stage_on(
        self,
        members: Sequence[Member],
        name: str,
        path: str,
        found: dict[str, worker_pb2.AdapterInfo],
        digest: Digest = NO_ADAPTER,
    ) -> list[Member]:
        """Returns those that do not see the folder, if others do. `digest`: the content, if it is known."""

        async def stage(session: WorkerSession) -> None:
            info = await _load_on(session, name, path, digest)
            self.table.claim(info.digest)
            found[session.worker_id] = info

        try:
            await on_every_worker(members, stage)
        except NotEverywhere as error:
            are_blind = all(map(_is_absence, error.failures.values()))
            if are_blind and found and not digest:
                return [member for member in members if member.handle.worker_id in error.failures]
            refusal = NotFound if are_blind and not found else AdapterNotLoaded
            raise refusal(f"The adapter {name!r} was not loaded: {error}.", param="lora_path") from None
        return []

    def _release(self, found: Iterable[worker_pb2.AdapterInfo]) -> None:
        for info in found:
            self.table.release(info.digest)

    # ------------------------------------------------------------------------------ in step

    async def run(self) -> None:
        """Keep workers and routers in step, for ever."""
        try:
            await repeat(self.turn, _LOOK_S, _log, "adapters are not exchanged with other routers")
        finally:
            await self._agreement.leave()

    async def turn(self) -> None:
        """Raises what the shared catalogue raises."""
        await self._agreement.look()
        await asyncio.gather(*(self._catch_up(session) for session in self._registry.computing()))
        try:
            await self._unload_unused()
        except NotEverywhere as error:
            _log.warning("an adapter is not unloaded: %s", error)

    async def _adopt(self, catalogue: Catalogue) -> None:
        if self.table.adopt(catalogue):
            await self._registry.reconsider()

    async def _catch_up(self, session: WorkerSession) -> None:
        """Load what the worker lacks, as much as it keeps: first what requests use. Requests bring the
        rest."""
        room = session.info.max_cpu_loras or math.inf
        for adapter in sorted(self.names.values(), key=lambda one: not self.table.is_used(one.digest)):
            if len(session.adapters) < room:
                await self._load_missing(session, adapter)

    async def _load_missing(self, session: WorkerSession, adapter: Adapter) -> None:
        if adapter.digest in session.adapters or not session.adapters.may_use(adapter.digest):
            return
        try:
            await self._load_again(session, adapter)
        except (RpcError, WorkerRefused) as error:
            session.adapters.refused(adapter.digest)
            _log.warning("%s lacks the adapter %s: %s", session.worker_id, adapter.name, error)
        else:
            await self._registry.reconsider()

    async def _load_again(self, session: WorkerSession, adapter: Adapter) -> None:
        """Raises RpcError, and WorkerRefused also for another content than that of the adapter."""
        info = await _load_on(session, adapter.name, adapter.path, adapter.digest)
        if info.digest != adapter.digest:
            self.table.claim(info.digest)
            self.table.release(info.digest)
            raise WorkerRefused(f"{adapter.path} has another content than when it was loaded")

    async def _unload_unused(self) -> None:
        """Raises NotEverywhere."""
        while (digest := await self._unused()) is not None:
            await on_every_worker(self._registry.computing_members(), partial(_unload_on, digest))
            self.table.forget(digest)

    async def _unused(self) -> Digest | None:
        """A content that no router uses any more, as they say now."""
        await self._agreement.tell()
        if not self.table.known - self.table.catalogue.digests:
            return None
        others = await self._agreement.others()
        return None if others is None else next(iter(self.table.unused(others)), None)


def _with(known: Catalogue, adapter: Adapter, in_place: bool) -> Catalogue | None:
    """Raises InvalidRequest if another router was first."""
    present = known.adapters.get(adapter.name)
    if present is not None and present.digest == adapter.digest:
        return None
    if present is not None and not in_place:
        raise InvalidRequest(f"The adapter {adapter.name!r} is loaded already.", param="lora_name")
    return known.with_adapter(adapter)


async def _load_on(
    session: WorkerSession, name: str, path: str, digest: Digest = NO_ADAPTER
) -> worker_pb2.AdapterInfo:
    """Raises RpcError, WorkerRefused."""
    info = await session.adapters.load(name, path, digest)
    if info.error:
        raise WorkerRefused(info.error)
    return info


async def _unload_on(digest: Digest, session: WorkerSession) -> None:
    """Raises RpcError, WorkerRefused."""
    if not session.adapters.may_hold(digest):
        return
    if error := (await session.adapters.unload(digest)).error:
        if not any(use.digest == digest for use in session.adapters.uses):
            session.adapters.discard(digest)  # it was evicted meanwhile, unless the next report has it
        raise WorkerRefused(error)


def _is_absence(reason: str) -> bool:
    return "no such" in reason.lower() or "not exist" in reason.lower()
