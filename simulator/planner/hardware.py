"""Peak performance of GPUs, from the vendors' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuModel:
    name: str
    flops: float
    """Dense bfloat16 operations per second."""
    bytes_per_s: float
    """Memory bandwidth."""
    memory_bytes: float
    link_bytes_per_s: float
    """Bandwidth to another GPU of the host, in one direction: NVLink, or else PCIe."""


H200: Final = GpuModel("h200", 989e12, 4.8e12, 141e9, 450e9)

GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        H200,
        GpuModel("b200", 2250e12, 7.7e12, 180e9, 900e9),
        GpuModel("h100", 989e12, 3.35e12, 80e9, 450e9),
        GpuModel("a100", 312e12, 2.04e12, 80e9, 300e9),
        GpuModel("l40s", 362e12, 0.864e12, 48e9, 32e9),
        GpuModel("l4", 121e12, 0.3e12, 24e9, 32e9),
    )
}
