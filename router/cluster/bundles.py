"""What a worker takes of a node: the resources of its bundle, and the memory that is there for it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from router.cluster.worker_config.machine import resource_of
from router.cluster.worker_config.worker_plan import WorkerPlan

Bundle = Mapping[str, float]
"""Amount by kind: CPU, GPU, or an accelerator's type."""


def bundle_of(plan: WorkerPlan) -> Bundle:
    """Resources of all ranks of a worker."""
    gpus = {"GPU": float(plan.gpus * plan.ranks)} if plan.gpus else {}
    accelerator = {} if plan.accelerator is None else resource_of(plan.accelerator)
    return {"CPU": float(plan.cpus * plan.ranks), **gpus, **accelerator}


def total(bundles: Sequence[Bundle]) -> Bundle:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in kinds}


def summed(bundles: Sequence[Bundle]) -> str:
    """In words."""
    return ", ".join(f"{amount:g} {kind}" for kind, amount in total(bundles).items())


def gpu_memory() -> int:
    """Total memory of the first GPU. Asks the driver itself, since importing torch would take seconds.

    Raises RuntimeError, and OSError where there is no driver.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    device, size = ctypes.c_int(), ctypes.c_size_t()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device),
    ):
        if status:
            raise RuntimeError(f"the CUDA driver reports error {status}")
    return size.value
