"""Loads a model folder into a model on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from common.progress import Progress, silent
from engine.device.compute_threads import compute_threads
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.select import ops_for
from engine.modeling.loader.dummy_weights import fill_randomly
from engine.modeling.loader.filling import Parameters, fill
from engine.modeling.loader.weight_files import check_whole, weight_files
from engine.modeling.models import registry
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import SINGLE_RANK, Communicator

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    folder: Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    load_format: str = "auto",
    seed: int = 0,
    quantization: str | None = None,
    context: int | None = None,
    expert_parallel_size: int = 1,
    progress: Progress = silent,
    communicator: Communicator = SINGLE_RANK,
    spec: ModelSpec | None = None,
) -> CausalLM:
    """Build the model of `folder` and fill its weights, from safetensors or, for "dummy", from `seed`.

    `spec`: of a head in the checkpoint, in place of the model that config.json describes.

    `quantization`: "fp8" quantizes the weights of an unquantized checkpoint as they are loaded. `context`:
    the longest request, by which LongRoPE chooses its angles. With tensor parallelism, only this rank's part;
    `expert_parallel_size` groups of ranks have experts of their own. A few tensors at a time pass through
    host memory, so peak memory is little more than the model.

    Raises:
        UnsupportedModel: the model of config.json is not supported, or cannot be split over the ranks.
        WeightsError: files are missing, or their tensors do not match the model.
    """
    spec = as_loaded(spec or ModelSpec.from_folder(folder), quantization, context, expert_parallel_size)
    target = torch.device(device)
    progress("Preparing kernels", 0, 0)  # compiled at the first start on a machine
    with defaults(target, _DTYPES[dtype]):
        layers = Layers(ops_for(target, _DTYPES[dtype]), communicator, spec.quantization)
        model = _built(spec, layers)
    match load_format:
        case "auto":
            files = weight_files(folder)
            check_whole(files)
            fill(model, files, Parameters(model), progress)
        case "dummy":
            fill_randomly(model, seed)
        case _:
            raise ValueError(f"load_format {load_format!r} is unknown; use auto or dummy")
    progress("Packing weights", 0, 0)
    if target.type == "cpu":
        compute_threads().adapt()
    model.pack()
    return model.eval()


def _built(spec: ModelSpec, layers: Layers) -> CausalLM:
    if spec.general is None:
        return registry.build(spec, layers)
    from engine.modeling.general.model import GeneralModel  # imports transformers, an extra

    return GeneralModel(spec, layers)


def as_loaded(
    spec: ModelSpec, quantization: str | None, context: int | None, expert_parallel_size: int
) -> ModelSpec:
    """The model that `load_model` builds from what a folder describes. Raises UnsupportedModel."""
    spec = spec.quantized(quantization).with_expert_parallel(expert_parallel_size)
    return spec if context is None else spec.for_context(context)


@contextmanager
def defaults(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Device and dtype of parameters created in this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
