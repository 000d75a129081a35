"""One vector from the final hidden states of each prompt: embeddings, and scores of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from engine.config import EngineConfig
from engine.core.plan import Chunk
from engine.device.staging import send
from engine.model_config.errors import WeightsError
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import DenseSpec, PoolingSpec
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.models.base import CausalLM
from engine.sampling.scoring import Scored

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


class Pooler:
    """Pools in float32. Normalization, and cuts to fewer dimensions, are left to the caller."""

    def __init__(self, spec: PoolingSpec, model: CausalLM, dense: Sequence[Dense] = ()) -> None:
        self._model = model
        self._classifies = spec.classifies
        self._dense = dense

    @classmethod
    def load(cls, config: EngineConfig, spec: PoolingSpec, model: CausalLM) -> Pooler:
        """Raises WeightsError."""
        device, folder = model.embed.weight.device, config.model_path
        dense = (
            [] if config.load_format == "dummy" else [_dense(folder, layer, device) for layer in spec.dense]
        )
        return cls(spec, model, dense)

    def __call__(self, hidden: Tensor, rows: Tensor, scored: Scored) -> Tensor:
        """The vectors [sums, d] of chunks, in float32, from `rows` of `hidden` [T, d].

        For a part of a prompt: its part of the vector; by pages: their sums.
        """
        lengths = [length for parts in scored.sums() for length in parts]
        owner = np.repeat(np.arange(len(lengths)), lengths)
        weights = np.concatenate([_weights(chunk, whole=not scored.page_size) for chunk in scored.chunks])
        (of_rows,), (factors,) = send([owner], hidden.device), send([weights], hidden.device)
        terms = hidden[rows].float() * factors[:, None]
        pooled = terms.new_zeros(len(lengths), terms.shape[1]).index_add_(0, of_rows, terms)
        if self._classifies:
            return self._model.logits(pooled.to(hidden.dtype)).float()
        for dense in self._dense:
            pooled = dense(pooled)
        return pooled


def _weights(chunk: Chunk, *, whole: bool) -> npt.NDArray[np.float32]:
    """Factors of its rows; `whole`: of the vector, and not of a sum that is divided later."""
    read, rows = chunk.request.read, chunk.num_scored
    assert read is not None
    pooling = Pooling(read.pooling)
    if pooling is Pooling.CLS:
        return np.asarray(np.arange(rows) == 0, np.float32)
    factor = 1.0 / pooling.divisor(len(chunk.request.prompt)) if whole else 1.0
    if pooling is Pooling.WEIGHTED_MEAN:
        return np.asarray(np.arange(chunk.start + 1, chunk.end + 1) * factor, np.float32)
    return np.full(rows, factor, np.float32)


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense layer of sentence-transformers."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        """x [S, d] -> [S, d']."""
        return _ACTIVATIONS[self.activation](functional.linear(x, self.weight, self.bias))


def _dense(folder: Path, spec: DenseSpec, device: torch.device) -> Dense:
    file = folder / spec.folder / "model.safetensors"
    if not file.exists():
        raise WeightsError(f"{file} is missing, a dense layer of modules.json")
    tensors = {name: tensor.to(device, torch.float32) for name, tensor in read_tensors([file])}
    if "linear.weight" not in tensors:
        raise WeightsError(f"{file} has no linear.weight")
    return Dense(tensors["linear.weight"], tensors.get("linear.bias"), spec.activation)
