"""Splits a pass through a class of transformers where its head begins.

Classes differ in what they do before and after the head: factors, soft caps, a bias. So both halves are
computed by the class's own `forward`: the first ends where the body has returned, the second begins there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class _Returned(Exception):
    """The body has computed its hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Given(tuple[Tensor, None]):
    """Hidden states as a body returns them: in a tuple, or by name. It returned nothing else."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Body(nn.Module):
    """In place of the body: ends the pass with its hidden states, or hands over given ones."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.given: Tensor | None = None

    def forward(self, *args: Any, **options: Any) -> Any:
        if self.given is None:
            raise _Returned(self.inner(*args, **options)[0])
        return _Given((self.given, None))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


class Halves(nn.Module):
    """`top`, whose `forward` calls its submodule `body` first and the head thereafter."""

    def __init__(self, top: PreTrainedModel, body: str) -> None:
        super().__init__()
        self.top = top
        self.path = body
        self._body = _Body(top.get_submodule(body))
        parent, _, name = body.rpartition(".")
        setattr(top.get_submodule(parent), name, self._body)

    def hidden(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] and [T], or [3, T] along the axes of images, to [T, d]: each token is a sequence of its own."""
        try:
            self._call(input_ids, positions)
        except _Returned as returned:
            return returned.hidden[:, 0]
        raise RuntimeError(f"{type(self.top).__name__} did not call {self.path}")

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, d] to [S, vocab]."""
        self._body.given = hidden[:, None]
        try:
            positions = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
            scores: Tensor = self._call(positions, positions).logits[:, 0]
        finally:
            self._body.given = None
        return scores

    def _call(self, input_ids: Tensor, positions: Tensor) -> Any:
        return self.top(
            input_ids=input_ids[:, None], position_ids=positions[..., None], use_cache=False, return_dict=True
        )

    def stored_name(self, path: str) -> str:
        """The name that transformers gives to the module at `path` of this one."""
        inside = f"top.{self.path}.inner"
        if path == inside or path.startswith(f"{inside}."):
            path = f"top.{self.path}" + path.removeprefix(inside)
        return path.removeprefix("top.")
