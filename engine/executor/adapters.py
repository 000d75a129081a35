"""The adapters of a runner, which all its ranks load, unload and compute with at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from engine.adapters.peft_folder import read_adapter
from engine.adapters.rank_adapters import HeldAdapter, RankAdapters, num_bytes
from engine.config import LoraConfig
from engine.core.adapters import AdapterInfo, Dropping, Filling, Holding, ReadAdapter, ReadingAhead
from engine.errors import AdapterRefused
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator
from engine.parallel.step_channel import StepChannel

_MOST_READ: Final = 8
"""Adapters that a rank keeps between `begin` and `hold`, which rank 0 leaves out for one that it refuses."""


class _Found(NamedTuple):
    digest: bytes
    held: HeldAdapter


class RunnerAdapters:
    """An `AdapterBank`."""

    def __init__(
        self, model: CausalLM, config: LoraConfig, communicator: Communicator, channel: StepChannel
    ) -> None:
        self._mine = RankAdapters(model, config)
        self._dtype = model.embed.weight.dtype
        self._communicator = communicator
        self._channel = channel
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="adapter-of-rank")
        self._read: dict[Path, Future[_Found | str]] = {}
        """On ranks other than 0: adapters that are read before they are held, the latest last."""

    def begin(self, name: str, path: Path) -> None:
        self._channel.send_order(ReadingAhead(name, path))

    def read(self, name: str, path: Path) -> ReadAdapter:
        stored = read_adapter(name, path)
        size = num_bytes(stored, self._dtype)
        info = AdapterInfo(
            name, stored.digest, stored.rank, stored.targets, size, invocation=stored.invocation
        )
        return ReadAdapter(info, path, self._mine.part(stored))

    def hold(self, adapter: ReadAdapter) -> None:
        self._channel.send_order(Holding(adapter.info.name, adapter.path, adapter.info.digest))
        self._hold(adapter.info.digest, adapter.content)

    def drop(self, digest: bytes) -> None:
        self._channel.send_order(Dropping(digest))
        self._mine.drop(digest)

    def fill(self, fillings: Sequence[Filling]) -> None:
        for filling in fillings:
            self._channel.send_order(filling)
            self._mine.fill(filling.slot, filling.digest)

    def follow(self, order: ReadingAhead | Holding | Dropping | Filling) -> None:
        """On ranks other than 0: do as rank 0 does. Raises AdapterRefused where rank 0 does."""
        match order:
            case ReadingAhead():
                self._read.pop(order.path, None)
                self._read[order.path] = self._threads.submit(self._found, order.name, order.path)
                while len(self._read) > _MOST_READ:
                    del self._read[next(iter(self._read))]
            case Holding():
                self._hold(order.digest, self._found_for(order))
            case Dropping():
                self._mine.drop(order.digest)
            case Filling():
                self._mine.fill(order.slot, order.digest)

    @property
    def is_reading(self) -> bool:
        """On ranks other than 0: whether an adapter is read beside steps."""
        return not all(reading.done() for reading in self._read.values())

    def close(self) -> None:
        """Wait for adapters that are being read."""
        self._threads.shutdown(cancel_futures=True)

    def _found(self, name: str, path: Path) -> _Found | str:
        """This rank's part, or what is wrong with it on this rank's machine. From any thread."""
        try:
            stored = read_adapter(name, path)
            return _Found(stored.digest, self._mine.part(stored))
        except AdapterRefused as error:
            return str(error)

    def _found_for(self, order: Holding) -> HeldAdapter | str:
        """This rank's part of what rank 0 has read, or what is wrong with it here."""
        early = self._read.pop(order.path, None)
        found = None if early is None else early.result()
        if not isinstance(found, _Found) or found.digest != order.digest:
            found = self._found(order.name, order.path)  # it was written meanwhile
        if isinstance(found, str):
            return found
        if found.digest != order.digest:
            return f"the adapter {order.name} has changed while it was loaded"
        return found.held

    def _hold(self, digest: bytes, found: HeldAdapter | str) -> None:
        problem = found if isinstance(found, str) else ""
        if not self._communicator.all_reduce_min(int(not problem)):
            raise AdapterRefused(problem or "another rank cannot load the adapter; its log says why")
        assert not isinstance(found, str)
        self._mine.hold(digest, found)
