"""What the linear layers of a transformers model receive, on a text."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import xml
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
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


class _Reached(Exception):
    pass


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


def moments(
    layer: nn.Module, stage: Sequence[str], hidden: Sequence[Tensor], settings: dict[str, Any]
) -> dict[str, Tensor]:
    """[in, in] of the inputs of each linear layer of a stage."""
    linears = {name: layer.get_submodule(name) for name in stage}
    sizes = {name: linear.get_parameter("weight").shape[1] for name, linear in linears.items()}
    found = {name: torch.zeros(size, size) for name, size in sizes.items()}

    def adding(name: str) -> Callable[..., None]:
        def add(module: nn.Module, positional: tuple[Tensor, ...]) -> None:
            rows = positional[0].flatten(0, -2)
            found[name].addmm_(rows.t(), rows)
            if name == stage[-1]:
                raise _Reached  # what follows in the layer is not needed

        return add

    hooks = [linear.register_forward_pre_hook(adding(name)) for name, linear in linears.items()]
    for x in hidden:
        with suppress(_Reached):
            output(layer, x, settings)
    for hook in hooks:
        hook.remove()
    return found


def output(layer: nn.Module, x: Tensor, settings: dict[str, Any]) -> Tensor:
    result = layer(x, **settings)
    found: Tensor = result[0] if isinstance(result, tuple) else result
    return found


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
