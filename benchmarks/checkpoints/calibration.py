"""What the linear layers of a transformers model receive, on a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

STAGES: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Linear layers that share their inputs, in the order in which one's outputs reach the next."""
_TOGETHER: Final = 8
"""Texts that are computed at once."""
_PASSAGE: Final = 12
"""Tokens in a row that two texts of different origin do not share."""


class _Reached(Exception):
    pass


def inputs(model: Any, ids: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """Of the first layer, some texts [texts, tokens] at a time, and what each layer receives besides."""
    hidden: list[Tensor] = []
    settings: dict[str, Any] = {}

    def keep(layer: nn.Module, positional: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        hidden.append(positional[0] if positional else named.pop("hidden_states"))
        settings.update(named)
        raise _Reached

    hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    for texts in torch.split(ids, _TOGETHER):
        with suppress(_Reached):
            model(texts, use_cache=False)
    hook.remove()
    return hidden, settings


def moments(
    layer: nn.Module, stage: Sequence[str], hidden: Sequence[Tensor], settings: dict[str, Any]
) -> Tensor:
    """[in, in] of the inputs that the linear layers of a stage share."""
    linear = layer.get_submodule(stage[0])
    features = linear.get_parameter("weight").shape[1]
    found = hidden[0].new_zeros(features, features)

    def add(module: nn.Module, positional: tuple[Tensor, ...]) -> None:
        rows = positional[0].flatten(0, -2)
        found.addmm_(rows.t(), rows)
        raise _Reached  # what follows in the layer is not needed

    hook = linear.register_forward_pre_hook(add)
    for x in hidden:
        with suppress(_Reached):
            output(layer, x, settings)
    hook.remove()
    return found


def output(layer: nn.Module, x: Tensor, settings: dict[str, Any]) -> Tensor:
    result = layer(x, **settings)
    found: Tensor = result[0] if isinstance(result, tuple) else result
    return found


def texts_of(ids: Sequence[int], length: int, unlike: Sequence[int]) -> Tensor:
    """`ids` cut into texts [texts, length], mixed, without those that repeat a passage of `unlike`."""
    cut = (ids[at : at + length] for at in range(0, len(ids) - length + 1, length))
    passages = set(_passages(unlike))
    kept = torch.tensor([text for text in cut if passages.isdisjoint(_passages(text))])
    return kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))]


def _passages(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return zip(*(ids[at:] for at in range(_PASSAGE)), strict=False)
