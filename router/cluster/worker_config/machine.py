"""The machine on which a worker will run, and its device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from router.config.choices import Device
from router.config.settings import RouterConfig


class PlanError(Exception):
    """The flags do not fit the model or the machine; the message says which flag to change."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a worker will run."""

    device: str
    """"cpu" or "cuda"."""
    memory_bytes: int
    """Memory of the GPU; on a CPU a rank's share of free main memory."""
    cpus: int
    """CPU cores for each rank of a worker."""
    host: str
    """The address that its workers listen on."""
    cpu_dtype: str = "float32"
    """The dtype for --dtype auto on a CPU."""


def on_accelerator(config: RouterConfig, machine: Machine) -> Machine:
    """The machine on nodes with the requested accelerator."""
    memory = memory_of(config.accelerator)
    return machine if memory is None else replace(machine, memory_bytes=memory)


def device_for(asked: Device, num_gpus: float) -> str:
    """The device of --device. Raises PlanError if it is cuda and there is no GPU."""
    if asked is Device.CUDA and num_gpus < 1:
        raise PlanError("--device cuda, but Ray finds no GPU; check nvidia-smi, or use --device cpu")
    if asked is Device.AUTO:
        return "cuda" if num_gpus >= 1 else "cpu"
    return str(asked.value)


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
