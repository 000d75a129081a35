"""What an engine tells of its adapters."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Use of a loaded adapter."""

    digest: bytes
    name: str
    on_device: bool
    """Whether it has a slot, so that a step can compute with it."""
    running: int
    waiting: int
