"""What the linear layers of a transformers model receive and should give, on a text."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import xml
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

STAGES: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Linear layers of a decoder layer, in the order in which one's outputs reach the next."""
_RESIDUALS: Final = {"self_attn.o_proj": "input_layernorm", "mlp.down_proj": "post_attention_layernorm"}
"""Whose input a linear layer's outputs are added to."""


class _Reached(Exception):
    pass


@dataclass(slots=True)
class Moments:
    inputs: Tensor
    """[in, in]: second moments of the inputs."""
    products: Tensor
    """[out, in]: of wanted outputs and inputs."""


def inputs(model: Any, ids: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """Of the first layer, a text after the other, and what each layer receives besides."""
    hidden: list[Tensor] = []
    settings: dict[str, Any] = {}

    def keep(layer: nn.Module, positional: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        hidden.append(positional[0] if positional else named.pop("hidden_states"))
        settings.update(named)
        raise _Reached

    hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    for text in ids:
        with suppress(_Reached):
            model(text.unsqueeze(0), use_cache=False)
    hook.remove()
    return hidden, settings


def wanted(
    layer: nn.Module, hidden: Sequence[Tensor], settings: dict[str, Any]
) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """Outputs of each linear layer, with what they are added to, and of the whole layer."""
    names = [name for stage in STAGES for name in stage]
    recorded, outputs = [], []
    for x in hidden:
        with _watched(layer, [*names, *_RESIDUALS.values()]) as seen:
            outputs.append(output(layer, x, settings))
        recorded.append({name: seen[name][1] + _residual(seen, name) for name in names})
    return recorded, outputs


def moments(
    layer: nn.Module,
    stage: Sequence[str],
    hidden: Sequence[Tensor],
    targets: Sequence[dict[str, Tensor]],
    settings: dict[str, Any],
) -> dict[str, Moments]:
    """Of the linear layers of a stage, with the inputs that the layers before them give now.

    What the layers before have got wrong in the residual stream is for the outputs to mend.
    """
    found: dict[str, Moments] = {}
    for x, target in zip(hidden, targets, strict=True):
        with _watched(layer, [*stage, *_RESIDUALS.values()], last=stage[-1]) as seen, suppress(_Reached):
            output(layer, x, settings)
        for name in stage:
            rows, right = seen[name][0], target[name] - _residual(seen, name)
            one = found.get(name)
            if one is None:
                one = found[name] = Moments(
                    torch.zeros(rows.shape[1], rows.shape[1]), torch.zeros(right.shape[1], rows.shape[1])
                )
            one.inputs.addmm_(rows.t(), rows)
            one.products.addmm_(right.t(), rows)
    return found


def output(layer: nn.Module, x: Tensor, settings: dict[str, Any]) -> Tensor:
    result = layer(x, **settings)
    found: Tensor = result[0] if isinstance(result, tuple) else result
    return found


def _residual(seen: dict[str, tuple[Tensor, Tensor]], name: str) -> Tensor | float:
    return seen[_RESIDUALS[name]][0] if name in _RESIDUALS else 0.0


@contextmanager
def _watched(
    layer: nn.Module, names: Sequence[str], last: str | None = None
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Input and output [tokens, features] of each; after `last` the forward pass ends with _Reached."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keeping(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, positional: tuple[Tensor, ...], result: Tensor) -> None:
            seen[name] = positional[0].flatten(0, -2), result.flatten(0, -2)
            if name == last:
                raise _Reached

        return keep

    hooks = [layer.get_submodule(name).register_forward_hook(keeping(name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def docstrings() -> str:
    """Of the standard library's modules, classes and functions."""
    found: dict[str, None] = {}
    names = sorted(
        {info.name for info in pkgutil.iter_modules(xml.__path__, "xml.")} | sys.stdlib_module_names
    )
    with redirect_stdout(None), redirect_stderr(None):
        for name in names:
            if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo", "test"):
                continue
            with suppress(Exception):
                module = importlib.import_module(name)
                members = [
                    module,
                    *(member for _, member in sorted(vars(module).items()) if callable(member)),
                ]
                found |= {inspect.cleandoc(text): None for member in members if (text := member.__doc__)}
    return "\n\n".join(text for text in found if len(text) > 200)
