"""A finished answer, for what is made of it as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class Answer:
    work: worker_pb2.Work
    """What was asked for, with the prompt and the resolved sampling parameters."""
    stops: Sequence[str]
    tokens: Sequence[int]
    """With the token that ended it."""
    finish: int
    """A sampling_pb2.FinishReason."""
    weights: Sequence[tuple[int, str]]
    """See `TokenStream.weights`."""


@with_config(ConfigDict(extra="forbid"))
class Extras(TypedDict):
    """Fields of an answer that a request asks for, under the same names in all APIs."""

    receipt: NotRequired[dict[str, Any]]
    """Digests of everything that the answer was computed from: docs/receipts.md."""


OnAnswer: TypeAlias = Callable[[Answer], Awaitable[Extras]]
"""Returns further fields of the answer."""
