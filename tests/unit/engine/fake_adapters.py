"""A bank of adapters without tensors, which refuses what a real one would compute wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from engine.core.adapters import AdapterInfo, Filling, ReadAdapter
from engine.core.plan import StepPlan


def digest_of(content: str) -> bytes:
    return blake2b(content.encode(), digest_size=16).digest()


@dataclass
class FakeAdapters:
    """An `AdapterBank`. The content of an adapter is the name of its folder."""

    held: set[bytes] = field(default_factory=set)
    slots: dict[int, bytes] = field(default_factory=dict)

    def begin(self, name: str, path: Path) -> None:
        """There are no other ranks."""

    def read(self, name: str, path: Path) -> ReadAdapter:
        return ReadAdapter(AdapterInfo(name, digest_of(path.name), 8, ("q_proj",), 100), path, None)

    def hold(self, adapter: ReadAdapter) -> None:
        assert adapter.info.digest not in self.held
        self.held.add(adapter.info.digest)

    def drop(self, digest: bytes) -> None:
        self.held.remove(digest)

    def fill(self, fillings: Sequence[Filling]) -> None:
        for filling in fillings:
            assert filling.digest in self.held, "an adapter that is not in host memory"
            self.slots[filling.slot] = filling.digest

    def check(self, plan: StepPlan) -> None:
        """Each request is computed with its own adapter."""
        for chunk in plan.chunks:
            request = chunk.request
            assert self.slots.get(request.adapter_slot, b"") == request.adapter_digest, "another adapter"
