"""A model that runs transformers' own modules: every class that keeps its state in attention alone.

The embedding, the head and the linear layers are Baton's, attention is computed on the pages of the KV pool,
and all between is what transformers has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.core.batch.media_rows import MediaRows
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.general_spec import GeneralSpec
from engine.modeling.general import classes
from engine.modeling.general.conversions import Conversions
from engine.modeling.general.halves import Halves
from engine.modeling.general.interface import ATTENTION, running
from engine.modeling.general.paged_pass import PagedPass, PooledHeads
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.linear.linear_layer import Linear, slots_of, weight
from engine.modeling.layers.modules import Embedding
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.weight_table import ParamSlice, WeightTable


class GeneralModel(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        self._general = _general(spec)
        if self._general.table != (spec.vocab_size, spec.hidden_size):
            self.embed = Embedding(*self._general.table)
            self.head = Linear(spec.hidden_size, spec.vocab_size, bias=False)
        on_cpu = self.embed.weight.device.type == "cpu"
        config = classes.config_of(json.loads(self._general.config))
        top = classes.build(config, ATTENTION, "eager" if on_cpu else "grouped_mm")
        self._conversions = Conversions(top)
        self._paths = _Paths(classes.path_of(top, classes.head_of(top)), self._general.unused)
        self._replace_ends(top)
        for path in self._general.unused:
            _replace(top, path, nn.Module())
        _replace_linears(top, self._general, layers)
        _make_parameters(top, {layer.sinks for layer in self._general.layers})
        classes.fix_rotations(top, self._general.context or spec.max_position)
        self.halves = Halves(top, self._general.body)
        self._placed_sinks: list[tuple[PooledHeads, Tensor, Tensor]] = []
        self._shared: set[str] = set()
        """Modules with parameters of others, which fill them."""
        self._heads = [PooledHeads.of(layer, spec) for layer in self._general.layers]

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        table = classes.table_of(self.halves.top)
        with running(PagedPass(attn, self._heads)), _placing(self.media, table):
            return self.halves.hidden(input_ids, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.halves.logits(hidden)

    def layer_attention(self) -> list[LayerAttention]:
        return [
            LayerAttention(
                scale=layer.scale,
                window=layer.window,
                soft_cap=layer.soft_cap,
                sinks=None if layer.sinks is None else self._sinks(heads),
            )
            for layer, heads in zip(self._general.layers, self._heads, strict=True)
        ]

    def _sinks(self, heads: PooledHeads) -> Tensor:
        """The sinks of a layer, for all heads of the pool."""
        stored = self._parameter(str(heads.layer.sinks))
        placed = heads.placed(stored)
        if placed is not stored:
            self._placed_sinks.append((heads, stored, placed))
        return placed

    def pack_tied_head(self) -> None:
        super().pack_tied_head()
        for heads, stored, placed in self._placed_sinks:  # weights are new
            placed.copy_(heads.placed(stored))

    def weight_table(self) -> WeightTable:
        table: dict[str, ParamSlice] = {}
        seen: set[int] = set()
        for path, module in self.named_modules():
            if not path.startswith("halves."):
                continue
            ours, source = {id(slot.target) for slot in slots_of(module)}, self._stored(path)
            if ours and ours <= seen:
                self._shared.add(source)
            elif ours:
                seen |= ours
                table[source] = ParamSlice(path)
        if not self.spec.tied_embeddings:
            table[self._paths.head] = self.head_param()
        return table

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        return self._conversions.tensors(name, tensor)

    def source_name(self, name: str) -> str:
        return name if self.spec.quantization is None else self.spec.quantization.read_as(name)

    def reads(self, name: str) -> bool:
        return not self._paths.are_unused(self._conversions.name(name))

    def ignores(self, name: str) -> bool:
        tied = self.spec.tied_embeddings and name == f"{self._paths.head}.weight"
        return (
            tied
            or name.rpartition(".")[0] in self._shared
            or super().ignores(name)
            or self._conversions.ignores(name)
        )

    def _stored(self, path: str) -> str:
        return self.halves.stored_name(path.removeprefix("halves."))

    def _parameter(self, stored: str) -> Tensor:
        paths = (path for path, _ in self.halves.named_parameters())
        path = next(path for path in paths if self.halves.stored_name(path) == stored)
        return self.halves.get_parameter(path).detach()

    def _replace_ends(self, top: PreTrainedModel) -> None:
        """Let the class use this model's embedding and head."""
        table, head = classes.table_of(top), classes.head_of(top)
        table.weight = self.embed.weight
        tied = self.spec.tied_embeddings
        assert isinstance(self.head, Linear)
        if not tied and head.bias is not None:
            self.head.bias = weight(len(head.bias))
        _replace(top, self._paths.head, _Head(self.head, head.bias if tied else None))


@contextmanager
def _placing(media: MediaRows | None, table: nn.Embedding) -> Iterator[None]:
    """Let rows of images take the place of embeddings, [T, 1, d]."""
    if media is None:
        yield
        return
    hook = table.register_forward_hook(lambda _, ids, x: media.placed(x[:, 0])[:, None])
    try:
        yield
    finally:
        hook.remove()


def _general(spec: ModelSpec) -> GeneralSpec:
    if spec.general is None:
        raise ValueError("not described by transformers' class")
    return spec.general


class _Paths:
    def __init__(self, head: str, unused: tuple[str, ...]) -> None:
        self.head = head
        self._unused = tuple(f"{path}." for path in unused)

    def are_unused(self, name: str) -> bool:
        return name.startswith(self._unused)


class _Rows(Linear):
    """A linear layer of a module that has features last: [.., in] -> [.., out]."""

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = super().forward(x.reshape(-1, self.in_features))
        return rows.view(*x.shape[:-1], -1)


class _OtherRows(_Rows):
    """Applied to other rows than one for each token, so that adapters of tokens cannot be added."""

    adaptable = False


class _Head(nn.Module):
    """In place of a class's head: the model's, and a bias that one tied to the embedding lacks."""

    def __init__(self, head: Linear, bias: nn.Parameter | None) -> None:
        super().__init__()
        self._head = [head]  # not a submodule: it is the model's
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self._head[0](x.reshape(-1, x.shape[-1]))
        if self.bias is not None:
            scores = scores + self.bias
        return scores.view(*x.shape[:-1], -1)


def _replace(model: nn.Module, path: str, by: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, by)


def _replace_linears(top: nn.Module, general: GeneralSpec, layers: Layers) -> None:
    uses: dict[int, int] = {}
    for module in top.modules():
        for parameter in module._parameters.values():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for path, module in list(top.named_modules()):
        if type(module) is not nn.Linear:
            continue
        if path in general.read_directly or uses[id(module.weight)] > 1:
            if layers.stores_quantized(path):
                raise UnsupportedModel(
                    f"{path} is quantized, but {general.class_name} reads its weight; use an unquantized"
                    " checkpoint"
                )
            continue
        bias = module.bias is not None
        made = layers.linear(
            path, in_features=module.in_features, out_features=module.out_features, bias=bias
        )
        made.__class__ = _OtherRows if path in general.not_by_token else _Rows
        _replace(top, path, made)


def _make_parameters(top: nn.Module, exact: set[str | None]) -> None:
    """Allocate what is still without memory. Buffers that checkpoints have are filled as parameters are."""
    made: dict[int, nn.Parameter] = {}
    for path, module in top.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                dtype = torch.float32 if f"{path}.{name}" in exact else parameter.dtype
                module._parameters[name] = made.setdefault(
                    id(parameter), weight(*parameter.shape, dtype=dtype)
                )
        for name in [name for name in module._buffers if name not in module._non_persistent_buffers_set]:
            buffer = module._buffers[name]
            if buffer is not None and buffer.is_floating_point():
                del module._buffers[name]
                setattr(module, name, nn.Parameter(buffer, requires_grad=False))
