"""GPU memory by Ray's accelerator types."""

from __future__ import annotations

from typing import Final

_GIB: Final[dict[str, int]] = {
    "T4": 16,
    "V100": 16,
    "A10G": 24,
    "L4": 24,
    "L40S": 48,
    "A100-40G": 40,
    "A100-80G": 80,
    "H100": 80,
    "H20": 96,
    "H200": 141,
    "B200": 180,
}


def memory_of(accelerator: str | None) -> int | None:
    """Bytes of one GPU; None for an unknown type, whose memory has to be measured."""
    gib = _GIB.get(accelerator or "")
    return None if gib is None else gib << 30


def resource_of(accelerator: str) -> dict[str, float]:
    """The resource that places a bundle on a node with this accelerator."""
    return {f"accelerator_type:{accelerator}": 0.001}
