"""The machine on which a worker will run, and its device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.config.choices import Device
from router.config.settings import RouterConfig
from router.worker_config.accelerators import memory_of


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
