"""Checks the GPUs of this machine, and measures the bandwidth to and between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from router.command.doctor.report import Finding, fail, ok, warn

_COPY_BYTES: Final = 256 << 20
_NVLINK_LEAST: Final = 70e9
"""Bytes per second: more than PCIe 5, less than any NVLink."""
_SHARED: Final = "share PCIe's host bridge, or switch off IOMMU and ACS; in Docker: --ipc=host"


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    pcie_bytes_per_s: float
    """Measured bandwidth from pinned host memory; a link between GPUs should exceed it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One direction between two GPUs."""

    source: int
    target: int
    peer_access: bool
    bytes_per_s: float
    """Bandwidth of the driver's peer copy."""


def find() -> list[Gpu]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [_measured(torch, index) for index in range(torch.cuda.device_count())]


def check(gpus: list[Gpu], pairs: list[Pair], *, is_wanted: bool) -> Iterator[Finding]:
    if not gpus:
        yield _none(is_wanted=is_wanted, has_driver=os.path.exists("/dev/nvidiactl"))
        return
    yield _driver()
    yield check_allocator(os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    for gpu in gpus:
        yield check_gpu(gpu)
    for pair in pairs:
        yield check_pair(pair)


def check_gpu(gpu: Gpu) -> Finding:
    major, minor = gpu.capability
    text = (
        f"{gpu.name}, compute capability {major}.{minor}, {gpu.memory_bytes / 2**30:.0f} GiB,"
        f" {gpu.pcie_bytes_per_s / 1e9:.0f} GB/s from the host"
    )
    name = f"cuda:{gpu.index}"
    if gpu.capability < (8, 0):
        return warn(name, text, "attention kernels and bfloat16 need 8.0 or more; try --dtype float16")
    return ok(name, text)


def check_pair(pair: Pair) -> Finding:
    name = f"cuda:{pair.source}→{pair.target}"
    rate = f"{pair.bytes_per_s / 1e9:.0f} GB/s"
    if not pair.peer_access:
        return warn(name, f"no peer access: KV is staged in host memory, at {rate}", _SHARED)
    way = "NVLink" if pair.bytes_per_s >= _NVLINK_LEAST else "PCIe"
    return ok(name, f"peer access, {rate} by the driver's own copy: that is {way}")


def check_allocator(configuration: str) -> Finding:
    """Memory of torch's expandable segments cannot be exported by cuda_ipc."""
    if "expandable_segments:true" in configuration.lower().replace(" ", ""):
        return fail(
            "allocator",
            f"PYTORCH_CUDA_ALLOC_CONF={configuration}: another process cannot write such memory over NVLink",
            "leave expandable_segments out",
        )
    return ok("allocator", "torch's memory can be shared between processes")


def pairs_of(gpus: list[Gpu]) -> list[Pair]:
    """Each GPU and the next: every GPU sends and receives once, instead of 56 rows for eight GPUs."""
    if len(gpus) < 2:
        return []
    import torch

    neighbours = zip(gpus, [*gpus[1:], gpus[0]], strict=True)
    return [_pair(torch, one.index, other.index) for one, other in neighbours]


def _none(*, is_wanted: bool, has_driver: bool) -> Finding:
    if is_wanted:
        return fail("gpu", "--device cuda, but torch sees none", "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    if has_driver:
        return warn(
            "gpu", "there is a driver, but torch sees no GPU", "install torch with CUDA; see nvidia-smi"
        )
    return ok("gpu", "none: workers will compute on the CPU")


def _driver() -> Finding:
    import torch

    version = torch.version.cuda
    return ok("cuda", f"torch is built for CUDA {version}, and the driver can run it")


def _measured(torch: Any, index: int) -> Gpu:
    facts = torch.cuda.get_device_properties(index)
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{index}")
    here = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    return Gpu(
        index=index,
        name=facts.name,
        capability=(facts.major, facts.minor),
        memory_bytes=facts.total_memory,
        pcie_bytes_per_s=_rate(torch, index, lambda: there.copy_(here, non_blocking=True)),
    )


def _pair(torch: Any, source: int, target: int) -> Pair:
    one = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{source}")
    other = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{target}")
    return Pair(
        source,
        target,
        torch.cuda.can_device_access_peer(source, target),
        _rate(torch, source, lambda: other.copy_(one, non_blocking=True)),
    )


def _rate(torch: Any, index: int, copy: Callable[[], object]) -> float:
    best = 0.0
    for _ in range(3):
        torch.cuda.synchronize(index)
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize(index)
        best = max(best, _COPY_BYTES / (time.perf_counter() - began))
    return best
