"""The adapters of an engine: which are loaded, and which requests use them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from engine.config import LoraConfig
from engine.core.adapters import AdapterBank, AdapterInfo, AdapterUse, ReadAdapter
from engine.core.request import Request
from engine.errors import AdapterMissing, AdapterRefused
from engine.sched.queue.adapter_slots import AdapterSlots


class Adapters:
    """All methods but `read` are called between two steps."""

    def __init__(
        self,
        config: LoraConfig | None,
        bank: AdapterBank | None,
        slots: AdapterSlots,
        users: Callable[[], Iterable[Request]],
    ) -> None:
        """`users`: all requests that compute with adapters, or will."""
        self._capacity = 0 if config is None else config.max_cpu_loras
        self._bank = bank
        self._slots = slots
        self._users = users
        self._loaded: dict[bytes, AdapterInfo] = {}
        """In order of their last use."""

    def __contains__(self, digest: object) -> bool:
        """Whether it is loaded."""
        return digest in self._loaded

    def expect(self, digest: bytes) -> bool:
        """Take requests with an adapter that is about to be loaded; they wait for `add`, or for `give_up`.

        False if it is loaded or expected already, or if this engine takes no adapters.
        """
        if self._bank is None or digest in self._loaded or digest in self._slots.coming:
            return False
        self._slots.coming.add(digest)
        return True

    def give_up(self, digest: bytes) -> bool:
        """An expected adapter does not come: its requests are to be aborted. False if it has come."""
        expected = digest in self._slots.coming
        self._slots.coming.discard(digest)
        return expected

    def require(self, request: Request) -> None:
        """Raises AdapterMissing unless the adapter of a new request is loaded or expected."""
        digest = request.adapter_digest
        if not digest or digest in self._slots.coming:
            return
        if (info := self._loaded.pop(digest, None)) is None:
            raise AdapterMissing(f"the adapter {request.adapter} is not loaded here")
        self._loaded[digest] = info

    def begin(self, name: str, path: Path) -> None:
        """Let all ranks read an adapter; `read` and `add` follow."""
        if self._bank is not None:
            self._bank.begin(name, path)

    def read(self, name: str, path: Path) -> ReadAdapter:
        """Read an adapter, and check that the model can take it. From any thread. Raises AdapterRefused."""
        if self._bank is None:
            raise AdapterRefused("this worker takes no adapters; start it with --enable-lora")
        began = time.monotonic()
        read = self._bank.read(name, path)
        return replace(read, info=replace(read.info, load_s=time.monotonic() - began))

    def add(self, adapter: ReadAdapter) -> AdapterInfo:
        """Take requests with it from now on. Raises AdapterRefused, and has changed nothing then."""
        digest = adapter.info.digest
        unloaded: tuple[bytes, ...] = ()
        if digest not in self._loaded:
            assert self._bank is not None
            unloaded = self._make_room()
            self._bank.hold(adapter)
        self._loaded[digest] = adapter.info
        self._slots.coming.discard(digest)
        return replace(adapter.info, unloaded=unloaded)

    def unload(self, digest: bytes) -> AdapterInfo:
        """Refuse requests with it from now on. Raises AdapterRefused for one that is in use or not loaded."""
        info = self._loaded.get(digest)
        if digest in self._slots.coming:
            raise AdapterRefused(f"the adapter {digest.hex()} is being loaded")
        if info is None:
            raise AdapterRefused(f"no adapter {digest.hex()} is loaded here")
        if count := self._in_use()[digest]:
            raise AdapterRefused(f"{count} requests use the adapter {info.name}")
        self._drop(digest)
        return info

    def uses(self) -> list[AdapterUse]:
        """O(requests), if adapters are loaded."""
        if not self._loaded:
            return []
        running: Counter[bytes] = Counter()
        waiting: Counter[bytes] = Counter()
        for request in self._users():
            (waiting if request.slot < 0 else running)[request.adapter_digest] += 1
        return [
            AdapterUse(
                digest=digest,
                name=info.name,
                on_device=self._slots.holds(digest),
                running=running[digest],
                waiting=waiting[digest],
                rank=info.rank,
                host_bytes=info.host_bytes,
            )
            for digest, info in self._loaded.items()
        ]

    def _make_room(self) -> tuple[bytes, ...]:
        """Unload the one that was used last longest ago, if there is no room for another."""
        if len(self._loaded) < self._capacity:
            return ()
        in_use = self._in_use()
        for digest in self._loaded:
            if not in_use[digest]:
                self._drop(digest)
                return (digest,)
        raise AdapterRefused(f"requests use all {self._capacity} adapters (--max-cpu-loras)")

    def _drop(self, digest: bytes) -> None:
        assert self._bank is not None
        self._slots.forget(digest)
        self._bank.drop(digest)
        del self._loaded[digest]

    def _in_use(self) -> Counter[bytes]:
        return Counter(request.adapter_digest for request in self._users())
