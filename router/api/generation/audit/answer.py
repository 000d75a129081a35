"""A finished answer, for what is made of it as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NotRequired, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2


class Detail(Enum):
    """What is reported of how an answer was computed."""

    TOKENS = "tokens"
    """The token ids of prompt and answer, beside the digests."""
    DIGESTS = "digests"
    """Nothing from which prompt or answer can be read."""

    @classmethod
    def asked(cls, value: bool | str | None) -> Detail | None:
        """From a request's field `receipt`: true, the name of a detail, or none. Raises InvalidRequest."""
        if not value:
            return None
        try:
            return cls.TOKENS if value is True else cls(value)
        except ValueError:
            raise InvalidRequest("receipt must be tokens or digests.", param="receipt") from None


@dataclass(frozen=True, slots=True)
class Issuer:
    """What all answers of a model have in common."""

    model: str
    """Name under which it, or its adapter, is served."""
    shape: str
    """See `shape_identity`."""
    numerics: str
    """See `EngineConfig.numerics`."""
    tokenizer: Tokenizer


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
