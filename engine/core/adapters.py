"""What an engine tells of its adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    name: str
    digest: bytes
    """Hash of adapter_config.json and all tensors."""
    rank: int
    targets: tuple[str, ...]
    """Names of the modules that it adapts, without those of their layers."""
    host_bytes: int
    """In host memory, over all ranks."""
    unloaded: tuple[bytes, ...] = ()
    """Adapters that made room for it."""
    load_s: float = 0.0
    """Seconds to read it."""
    invocation: tuple[int, ...] = ()
    """Tokens that activate it; empty: it is used from the first token on."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Use of a loaded adapter."""

    digest: bytes
    name: str
    on_device: bool
    """Whether it has a slot, so that a step can compute with it."""
    running: int
    waiting: int
    rank: int
    host_bytes: int


@dataclass(frozen=True, slots=True)
class Filling:
    """A slot that gets another adapter before the next step."""

    slot: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ReadingAhead:
    """An adapter that all ranks begin to read, beside their steps."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Holding:
    """An adapter that all ranks load."""

    name: str
    path: Path
    digest: bytes


@dataclass(frozen=True, slots=True)
class Dropping:
    """An adapter that all ranks unload."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory, which the model can take."""

    info: AdapterInfo
    path: Path
    content: Any
    """What the runner that has read it keeps."""


class AdapterBank(Protocol):
    """The adapters of a runner: in host memory, and in slots on the device."""

    def begin(self, name: str, path: Path) -> None:
        """Let the other ranks read while rank 0 does, so that `hold` does not wait for their disks."""

    def read(self, name: str, path: Path) -> ReadAdapter:
        """On rank 0, from any thread. Raises AdapterRefused for what the model cannot take."""

    def hold(self, adapter: ReadAdapter) -> None:
        """Keep it in host memory, on all ranks. Raises AdapterRefused; then no rank has it."""

    def drop(self, digest: bytes) -> None:
        """Free its host memory, on all ranks."""

    def fill(self, fillings: Sequence[Filling]) -> None:
        """Replace the adapters of slots, after the steps that are enqueued."""
