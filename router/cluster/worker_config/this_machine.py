"""This machine, as a worker in this process would find it."""

from __future__ import annotations

import torch

from common.cpu_times import usable_cores
from common.main_memory import available_memory
from engine.device.cpu_dtype import preferred_cpu_dtype
from router.cluster.worker_config.machine import Machine, device_for
from router.config.choices import Dtype
from router.config.settings import RouterConfig


def this_machine(config: RouterConfig) -> Machine:
    """With its first GPU, unless `config` asks for another device. Raises PlanError."""
    device = device_for(config.device, float(torch.cuda.device_count()))
    is_cpu = device == "cpu"
    return Machine(
        device=device,
        memory_bytes=available_memory() if is_cpu else torch.cuda.get_device_properties(0).total_memory,
        cpus=usable_cores(),
        host="",
        cpu_dtype=preferred_cpu_dtype() if is_cpu and config.dtype is Dtype.AUTO else "float32",
    )
