"""The adapters of a runner, which all its ranks load, unload and compute with at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.adapters.peft_folder import read_adapter
from engine.adapters.rank_adapters import HeldAdapter, RankAdapters, num_bytes
from engine.config import LoraConfig
from engine.core.adapters import AdapterInfo, Dropping, Filling, Holding, ReadAdapter
from engine.errors import AdapterRefused
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator
from engine.parallel.step_channel import StepChannel


class RunnerAdapters:
    """An `AdapterBank`."""

    def __init__(
        self, model: CausalLM, config: LoraConfig, communicator: Communicator, channel: StepChannel
    ) -> None:
        self._mine = RankAdapters(model, config)
        self._dtype = model.embed.weight.dtype
        self._communicator = communicator
        self._channel = channel

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

    def follow(self, order: Holding | Dropping | Filling) -> None:
        """On ranks other than 0: do as rank 0 does. Raises AdapterRefused where rank 0 does."""
        match order:
            case Holding():
                self._hold(order.digest, self._found(order))
            case Dropping():
                self._mine.drop(order.digest)
            case Filling():
                self._mine.fill(order.slot, order.digest)

    def _found(self, order: Holding) -> HeldAdapter | str:
        """This rank's part, or what is wrong with it on this rank's machine."""
        try:
            stored = read_adapter(order.name, order.path)
            if stored.digest != order.digest:
                return f"the adapter {order.name} has changed while it was loaded"
            return self._mine.part(stored)
        except AdapterRefused as error:
            return str(error)

    def _hold(self, digest: bytes, found: HeldAdapter | str) -> None:
        problem = found if isinstance(found, str) else ""
        if not self._communicator.all_reduce_min(int(not problem)):
            raise AdapterRefused(problem or "another rank cannot load the adapter; its log says why")
        assert not isinstance(found, str)
        self._mine.hold(digest, found)
