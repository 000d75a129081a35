"""The vision model of a checkpoint: transformers' own modules, without its language model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.utils import logging as reports

from engine.core.media import MediaArray, MediaItem
from engine.errors import UnservableRequest
from engine.media import segments
from engine.model_config.errors import WeightsError
from engine.model_config.parts.vision_spec import VisionSpec
from engine.modeling.general import classes

_DTYPES: Final = {
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}

_IN_SEGMENTS: Final = frozenset(
    f"transformers.models.{name}.modeling_{name}"
    for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v")
)
"""Modules whose vision models pass the ends of segments to their attention."""
_ALIGNED: Final = 64
"""Features of which kernels take a multiple."""
_WITHOUT_LAYERS: Final = {
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "intermediate_size": 8,
    "vocab_size": 8,
    "vocab_size_per_layer_input": 8,
}
"""Fields of a language model that count its layers, or that make what is left of it large."""
_IN_VOCABULARY: Final = ("pad_token_id", "bos_token_id", "eos_token_id")
_OTHERS: Final = frozenset({"audio_config"})
"""Parts that are neither the vision model nor the language model."""


class Tower:
    """Encodes one item at a time, so that equal items have equal rows whatever else a step has."""

    def __init__(
        self,
        folder: Path,
        spec: VisionSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        dummy_seed: int | None,
        plain: bool = False,
    ) -> None:
        """`dummy_seed`: of random weights; None: those of the checkpoint. `plain`: leave the modules as they
        are, for comparisons. Raises WeightsError."""
        self._spec = spec
        self._device = device
        self._model = _load(folder, dtype, dummy_seed).to(device)
        if device.type == "cuda" and not plain:
            attend_in_segments(self._model)
            pad_mlps(self._model)

    @torch.inference_mode()
    def rows(self, item: MediaItem) -> Tensor:
        """See `VisionModel`. Raises UnservableRequest for arrays that the vision model refuses."""
        arrays = {array.name: self._tensor(array) for array in item.arrays if array.name in self._spec.arrays}
        if self._spec.grid is not None:
            arrays["image_grid_thw"] = torch.tensor([item.grid], device=self._device)
        try:
            features = self._model.get_image_features(**arrays, return_dict=True)
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:  # shapes that it does not expect
            raise UnservableRequest(f"the vision model cannot encode an image: {error}") from error
        parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]
        return torch.cat([_flat(part) for part in parts], dim=-1)

    def _tensor(self, array: MediaArray) -> Tensor:
        flat = torch.frombuffer(bytearray(array.data), dtype=_DTYPES[array.dtype])
        return flat.view(array.shape).to(self._device)


def attend_in_segments(model: Any) -> None:
    """Let vision models that attend within segments make one call for all; others stay as they are."""
    for part in model.children():
        if isinstance(part, PreTrainedModel) and type(part).__module__ in _IN_SEGMENTS:
            part.config._attn_implementation = segments.NAME  # the method looks for a kernel of this name


@torch.no_grad()
def pad_mlps(model: nn.Module) -> None:
    """Widen gated MLPs by features that are always 0, where kernels for aligned rows could not be used.

    The 3,420 features of Qwen2.5-VL's take 21 of 53 ms of an image of 1,024 x 1,024 on an H200.
    """
    for module in model.modules():
        layers: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        if not all(isinstance(layer, nn.Linear) for layer in layers):
            continue
        gate, up, down = layers
        if more := -gate.out_features % _ALIGNED:
            for layer in (gate, up):
                layer.weight = _padded(layer.weight, (0, 0, 0, more))
                layer.out_features += more
                if layer.bias is not None:
                    layer.bias = _padded(layer.bias, (0, more))
            down.weight = _padded(down.weight, (0, more))
            down.in_features += more


def _padded(parameter: Tensor, widths: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(functional.pad(parameter, widths), requires_grad=False)


def _flat(features: Any) -> Tensor:
    """[n, d] of one tensor, or of one for each image or tile."""
    rows: Tensor = features if isinstance(features, Tensor) else torch.cat([*features])
    return rows.reshape(-1, rows.shape[-1])


def _load(folder: Path, dtype: torch.dtype, dummy_seed: int | None) -> Any:
    """The inner model of the checkpoint's class, whose language model is gone."""
    config = classes.config_of(_with_short_text(json.loads((folder / "config.json").read_text("utf-8"))))
    cls: Any = classes.class_of(config)
    missing: Iterable[str] = ()
    with _quiet():
        if dummy_seed is None:
            top, report = _read(cls, folder, config, dtype)
            missing = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        else:
            with classes.BUILDING, torch.random.fork_rng(devices=[]):
                torch.manual_seed(dummy_seed)
                top = cls(config).to(dtype)
    inner = top.base_model
    text = inner.get_decoder()
    path = classes.path_of(top, text)
    ignored = (f"{path}.", f"{classes.path_of(top, top.get_output_embeddings())}.")
    if lacking := sorted(name for name in missing if not name.startswith(ignored)):
        raise WeightsError(
            f"{folder} lacks weights of the vision model, such as {lacking[0]}; serve its text alone by"
            " --language-model-only"
        )
    for name, child in inner.named_children():
        if child is text:
            setattr(inner, name, nn.Module())
    return inner.eval().requires_grad_(False)


def _read(cls: Any, folder: Path, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers reports of its weights. Raises WeightsError."""
    try:
        with classes.BUILDING:
            top, report = cls.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # of the language model's layer
            )
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of the library, about files of any kind
        raise WeightsError(f"the vision model of {folder} cannot be loaded: {error}") from error
    return top, report


def _with_short_text(fields: dict[str, Any]) -> dict[str, Any]:
    """A parsed config.json whose language model has one layer, which is thrown away."""
    full = classes.config_of(fields).to_dict()
    text = full["text_config"] | {"num_hidden_layers": 1}
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:1]
    text |= {name: value for name, value in _WITHOUT_LAYERS.items() if name in text}
    text |= {name: None for name in _IN_VOCABULARY if text.get(name) is not None}
    text.pop("per_layer_config", None)
    full |= dict.fromkeys(_OTHERS & full.keys())
    full.pop("quantization_config", None)
    return full | {"text_config": text}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress, and report of the language model's weights, which are not wanted."""
    before, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()  # type: ignore[no-untyped-call]
    reports.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        reports.set_verbosity(before)
        if bars:
            reports.enable_progress_bar()  # type: ignore[no-untyped-call]
