"""What the scheduler asks of a model that drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from engine.core.request import Request, RequestId, TokenId
from engine.core.sampling_params import SamplingParams


class Wanted(NamedTuple):
    """Guesses of the tokens after the last known one of a request that has a slot."""

    request: Request
    limit: int


class DraftSource(Protocol):
    """Drafts for many requests at once."""

    def draft(self, wanted: Sequence[Wanted]) -> list[list[TokenId]]:
        """For each request at most `limit` tokens; none where it cannot guess yet. May wait for a device."""

    def ended(self, request: RequestId) -> None:
        """Forget a request. It need not be known."""

    def check_pages(self) -> object:
        """Raises PageLeak for a page of its own without exactly one owner."""

    def close(self) -> None: ...


def guessing(sampling: SamplingParams) -> SamplingParams:
    """What decides about a single token. Penalties and grammars follow all tokens so far, also wrong ones."""
    return replace(
        sampling,
        min_tokens=0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logprobs=None,
        prompt_logprobs=None,
        stop_token_ids=(),
        grammar=None,
    )
