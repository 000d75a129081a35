"""Selection of the small operations for a device and dtype."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from engine.kernels.cpu.library import cpu_kernels
from engine.modeling.layers.ops.cpu_ops import CpuOps
from engine.modeling.layers.ops.ops import Ops

logger = logging.getLogger(__name__)


def ops_for(device: torch.device, dtype: torch.dtype) -> Ops:
    """The operations for tensors of `dtype` on `device`."""
    if device.type == "cpu":
        kernels = cpu_kernels(dtype)
        return Ops() if kernels is None else CpuOps(kernels)
    if device.type != "cuda" or dtype == torch.float32:
        return Ops()
    if find_spec("flashinfer") is None:
        logger.warning(
            "flashinfer is not installed: the GPU runs plain torch operations, several times slower"
        )
        return Ops()
    from engine.modeling.layers.ops.flashinfer_ops import FlashInferOps  # imports CUDA libraries

    return FlashInferOps()
