"""What clients say about the prefix cache: who shares it, the key of their session, how long KV stays."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from router.api.generation.params.validation import RequestModel
from router.request_limits import MAX_CACHE_KEY
from rpc.baton.v1 import worker_pb2

CacheKey: TypeAlias = Annotated[str, Field(max_length=MAX_CACHE_KEY)]
CacheRetention: TypeAlias = Literal["in_memory", "in-memory", "24h"]
"""OpenAI's."""

_MINUTE_S: Final = 60.0
HOUR_S: Final = 60 * _MINUTE_S
_TTL_S: Final = {"5m": 5 * _MINUTE_S, "1h": HOUR_S}
_RETENTION_S: Final = {"24h": 24 * HOUR_S}


class CacheHints(RequestModel):
    cache_salt: str | None = None
    """vLLM's: share cached prefixes only with requests of the same salt."""
    prompt_cache_key: CacheKey | None = None
    """Names the session whose KV is retained."""

    @property
    def retain_s(self) -> float:
        """Seconds for which the KV of prompt and answer is retained; 0: it is evicted like any other."""
        return 0.0

    @property
    def cache_fields(self) -> dict[str, Any]:
        """Fields of `envelope`."""
        return {
            "cache_key": self.prompt_cache_key or "",
            "retain_s": self.retain_s,
            "cache_salt": self.cache_salt,
        }


class OpenAICacheHints(CacheHints):
    prompt_cache_retention: CacheRetention | None = None
    """`24h`: evict the KV of prompt and answer after all other, within the budget of the API key."""

    @property
    def retain_s(self) -> float:
        return _RETENTION_S.get(self.prompt_cache_retention or "", 0.0)


def retained(work: worker_pb2.Work) -> list[tuple[int, float]]:
    """Tokens of beginnings of the prompt that are retained, and for how many seconds."""
    asked = work.retention
    whole = [(len(work.prompt), asked.seconds)] if asked.seconds else []
    return [(prefix.tokens, prefix.seconds) for prefix in asked.prefixes] + whole


class CacheControl(RequestModel):
    """Anthropic's mark: retains the prompt up to the block that has it; at a request, prompt and answer."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """5 minutes unless given."""

    @property
    def seconds(self) -> float:
        return _TTL_S[self.ttl or "5m"]
