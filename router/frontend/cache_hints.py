"""What clients say about the prefix cache: the key of their session, and how long its KV is to stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, Field

from router.processing.params.validation import STRICT
from router.request_limits import MAX_CACHE_KEY

CacheKey: TypeAlias = Annotated[str, Field(max_length=MAX_CACHE_KEY)]
CacheRetention: TypeAlias = Literal["in_memory", "in-memory", "24h"]
"""OpenAI's."""

_MINUTE_S: Final = 60.0
_TTL_S: Final = {"5m": 5 * _MINUTE_S, "1h": 60 * _MINUTE_S}
_RETENTION_S: Final = {"24h": 24 * 60 * _MINUTE_S}


class CacheControl(BaseModel):
    """Anthropic's mark. Wherever it is, it retains the whole prompt, with its answer."""

    model_config = STRICT

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """5 minutes unless given."""


def retained_s(retention: CacheRetention | None) -> float:
    """Seconds for which KV is retained; 0: it is evicted like any other."""
    return 0.0 if retention is None else _RETENTION_S.get(retention, 0.0)


def longest_s(marks: Iterable[CacheControl | None]) -> float:
    """The longest time to live among the marks of a request; 0 without any."""
    return max((_TTL_S[mark.ttl or "5m"] for mark in marks if mark is not None), default=0.0)
