"""Registers Baton's attention with transformers: every module's attention calls arrive at the current pass.

The tokens of a step are rows of a batch of sequences of one token, [T, 1, d]. So nothing but attention, whose
keys and values are in pages, can mix tokens. Masks are not built: the rules of a layer are those that a pass
without weights has shown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface

ATTENTION: Final = "baton"
"""Name of the implementation in configs."""
DESCRIBING: Final = "baton_describing"
"""The same where masks are to be described: see `describe`."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a module hands over: queries [T, heads, 1, features], keys, values, and its options."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: object
    options: dict[str, Any]


class Pass(Protocol):
    """A forward pass, which computes the attention of its modules in the order in which they ask."""

    def attend(self, call: AttentionCall) -> Tensor:
        """The results of attention, [T, 1, heads, features of a value]."""

    def mask(self, **options: Any) -> object:
        """In place of an attention mask."""


class _Current(threading.local):
    running: Pass | None = None


_CURRENT: Final = _Current()


@contextmanager
def running(one: Pass) -> Iterator[None]:
    """Attention calls of this thread arrive at `one`."""
    before, _CURRENT.running = _CURRENT.running, one
    try:
        yield
    finally:
        _CURRENT.running = before


def _pass() -> Pass:
    if _CURRENT.running is None:
        raise RuntimeError("attention of a model of transformers outside a pass of Baton")
    return _CURRENT.running


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, **options: Any
) -> tuple[Tensor, None]:
    return _pass().attend(AttentionCall(module, query, key, value, attention_mask, options)), None


def _mask(**options: Any) -> object:
    return _pass().mask(**options)


AttentionInterface.register(ATTENTION, _attend)
AttentionInterface.register(DESCRIBING, _attend)
AttentionMaskInterface.register(DESCRIBING, _mask)


def _no_experts(experts: nn.Module, hidden_states: Tensor, *routes: Tensor) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


ExpertsInterface.register(DESCRIBING, _no_experts)
