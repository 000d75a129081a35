"""The largest step that a scheduler plans, for measuring activation memory. Plain Python."""

from __future__ import annotations

from typing import NamedTuple

from engine.config import EngineConfig


class TokenSpan(NamedTuple):
    """Tokens [start, start + length) of one request."""

    start: int
    length: int


def largest_step(config: EngineConfig) -> list[TokenSpan]:
    """Chunks of a step with the largest number of tokens; prompts first, then decodes.

    Prompts are at the end of the longest context, where attention reads most. A budget beyond that context
    takes several prompts, and the result may then have a few requests more than run at once.
    """
    longest, decodes = config.max_model_len, config.scheduler.max_running_requests - 1
    scheduler = config.scheduler
    limit = scheduler.prefill_limit(longest)
    if scheduler.chunk_budget is None:  # decodes take nothing of what prompts may have
        tokens = limit if scheduler.chunked_prefill else longest
    else:
        tokens = max(limit - decodes, config.page_size)
    whole, rest = divmod(tokens, longest)
    lengths = [longest] * whole + [rest] * bool(rest) + [1] * decodes
    return [TokenSpan(longest - length if length > 1 else 0, length) for length in lengths]


def most_rows(config: EngineConfig) -> int:
    """Rows of a forward pass at most: tokens of the largest step, drafts, and the padding of CUDA graphs."""
    tokens = sum(span.length for span in largest_step(config)) + config.scheduler.max_running_requests
    return max(tokens, config.cuda_graph_max_tokens) + config.max_decode_rows
