"""Loads a model folder into a model on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from common.progress import Progress, silent
from engine.device.compute_threads import compute_threads
from engine.device.cpu_threads import in_parallel
from engine.model_config.errors import WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.model_config.shard import Shard
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.select import ops_for
from engine.modeling.loader.dummy_weights import fill_randomly
from engine.modeling.loader.places import Place, places_of
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.loader.upload import Upload
from engine.modeling.loader.weight_files import check_whole, weight_files
from engine.modeling.models import registry
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import SINGLE_RANK, Communicator

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STAGE: Final = "Loading weights"
_NAMES_SHOWN: Final = 5
_UPLOADING: Final = 8
"""Threads that copy to a GPU."""


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
    spec = (spec or ModelSpec.from_folder(folder)).quantized(quantization)
    spec = spec.with_expert_parallel(expert_parallel_size)
    if context is not None:
        spec = spec.for_context(context)
    target = torch.device(device)
    progress("Preparing kernels", 0, 0)  # compiled at the first start on a machine
    with _defaults(target, _DTYPES[dtype]):
        layers = Layers(ops_for(target, _DTYPES[dtype]), communicator, spec.quantization)
        model = registry.build(spec, layers)
    match load_format:
        case "auto":
            files = weight_files(folder)
            check_whole(files)
            _fill(model, files, progress, communicator.shard)
        case "dummy":
            fill_randomly(model, seed)
        case _:
            raise ValueError(f"load_format {load_format!r} is unknown; use auto or dummy")
    progress("Packing weights", 0, 0)
    if target.type == "cpu":
        compute_threads().adapt()
    model.pack()
    return model.eval()


@contextmanager
def _defaults(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Device and dtype of parameters created in this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def _fill(model: CausalLM, files: list[Path], progress: Progress, share: Shard) -> None:
    places = places_of(model)
    unexpected: list[str] = []
    done, total = 0, sum(file.stat().st_size for file in files)
    progress(_STAGE, 0, total)
    for tensor in _copied(model, read_tensors(files, _reads(model), share), places, unexpected):
        done += tensor.nbytes
        progress(_STAGE, done, total)
    progress(_STAGE, total, total)
    if not done and model.spec.is_mtp_head:
        raise WeightsError(
            f"{files[0].parent} has no head for multi-token prediction: use --speculative auto, or a"
            " checkpoint that has one"
        )
    if places or unexpected:
        problems = filter(None, (_listing("missing", list(places)), _listing("unexpected", unexpected)))
        raise WeightsError(
            f"the weights in {files[0].parent} are not those of its config.json: {'; '.join(problems)}"
        )


def _reads(model: CausalLM) -> Callable[[str], bool]:
    return lambda name: model.reads(model.source_name(name))


def _copied(
    model: CausalLM,
    tensors: Iterable[tuple[str, Tensor]],
    places: dict[str, list[Place]],
    unexpected: list[str],
) -> Iterator[Tensor]:
    """Each tensor, once it is copied to its places, which are removed from `places`."""

    on_host = next(model.parameters()).device.type == "cpu"
    copy = Tensor.copy_ if on_host else Upload()

    def fill(named: tuple[str, Tensor, list[Place]]) -> Tensor:
        name, tensor, places = named
        with torch.inference_mode():  # this is another thread
            for place in places:
                place.fill(tensor, name, copy)
        return tensor

    def placed() -> Iterator[tuple[str, Tensor, list[Place]]]:
        for name, stored in tensors:
            for source, tensor in model.unstacked(model.source_name(name), stored):
                filled = places.pop(source, [])
                if not filled and model.ignores(source):
                    model.check_ignored(source, tensor)
                elif not filled and not model.is_empty(source, tensor):
                    unexpected.append(name)
                yield name, tensor, filled

    return in_parallel(fill, placed(), threads=None if on_host else _UPLOADING)


def _listing(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{what} {', '.join(names[:_NAMES_SHOWN])}{more}"
