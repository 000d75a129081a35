"""What the scheduler asks of a model that drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.core.request import Request, RequestId, TokenId


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
