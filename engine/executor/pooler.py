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

from engine.core.plan import Chunk
from engine.device.staging import send
from engine.model_config.errors import WeightsError
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import DenseSpec, PoolingSpec
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.models.base import CausalLM

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
    def load(cls, spec: PoolingSpec, model: CausalLM, folder: Path, load_format: str) -> Pooler:
        """Raises WeightsError."""
        device = model.embed.weight.device
        dense = [] if load_format == "dummy" else [_dense(folder, layer, device) for layer in spec.dense]
        return cls(spec, model, dense)

    def __call__(self, hidden: Tensor, rows: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """The vectors [len(chunks), d] of chunks, in float32, from `rows` of `hidden` [T, d].

        For a part of a prompt: its part of the mean.
        """
        lengths = [chunk.num_scored for chunk in chunks]
        owner = np.repeat(np.arange(len(chunks)), lengths)
        weights = np.concatenate([_weights(chunk) for chunk in chunks])
        of_rows, factors = send([owner, weights], hidden.device)
        terms = hidden[rows].float() * factors[:, None]
        pooled = terms.new_zeros(len(chunks), terms.shape[1]).index_add_(0, of_rows, terms)
        if self._classifies:
            return self._model.logits(pooled.to(hidden.dtype)).float()
        for dense in self._dense:
            pooled = dense(pooled)
        return pooled


def _weights(chunk: Chunk) -> npt.NDArray[np.float32]:
    read, rows = chunk.request.read, chunk.num_scored
    assert read is not None
    match Pooling(read.pooling):
        case Pooling.MEAN:
            return np.full(rows, 1.0 / len(chunk.request.prompt), np.float32)
        case Pooling.CLS:
            first = np.zeros(rows, np.float32)
            first[0] = 1.0
            return first
        case Pooling.LAST:
            return np.ones(rows, np.float32)


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
