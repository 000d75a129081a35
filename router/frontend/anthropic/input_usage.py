"""How the input tokens of a message are divided: read from the prefix cache, retained in it, and others."""

from __future__ import annotations

from collections.abc import Sequence

from router.frontend.anthropic.schemas import InputUsage
from router.frontend.cache_hints import HOUR_S


def input_usage(prompt: int, cached: int, prefixes: Sequence[tuple[int, float]]) -> InputUsage:
    """`cached`: tokens of a prompt that were in the prefix cache. `prefixes`: tokens of beginnings that are
    retained, and for how many seconds: a token for the longest of its times."""
    end = max((tokens for tokens, _ in prefixes), default=0)
    hour_end = max((tokens for tokens, seconds in prefixes if seconds >= HOUR_S), default=0)
    created, for_an_hour = max(0, end - cached), max(0, hour_end - cached)
    return {
        "input_tokens": prompt - cached - created,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": created,
        "cache_creation": {
            "ephemeral_5m_input_tokens": created - for_an_hour,
            "ephemeral_1h_input_tokens": for_an_hour,
        },
    }
