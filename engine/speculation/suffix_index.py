"""Where the last tokens of a sequence occurred before, and what came after them.

A suffix tree with counts (SuffixDecoding, arXiv 2411.04975) answers the same question. Here the places of
every run of `ORDER` tokens are kept, and the few places that match are compared backwards and walked forwards
when a draft is wanted: inserting a token costs one dictionary entry instead of a path of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.speculation.kinds import TokenId

ORDER: Final = 3
"""Tokens that must match for a place to count."""
_MOST_PLACES: Final = 12
"""Places kept for each run of tokens: the newest."""
_LONGEST_MATCH: Final = 32
"""Matches are compared backwards up to this."""
_UNLIKELY: Final = 0.1
"""A draft ends where fewer than this share of the places that began it still agree."""
END: Final = -1
"""Separates sequences of one index; no draft goes beyond it."""


@dataclass(frozen=True, slots=True)
class Continuation:
    tokens: list[TokenId]
    match: int
    """Tokens that matched before it."""


class SuffixIndex:
    """Append-only. `extend` costs O(new tokens), `continuation` O(places * (match + draft))."""

    def __init__(self, tokens: Iterable[TokenId] = ()) -> None:
        self.tokens: list[TokenId] = []
        self._places: dict[tuple[TokenId, ...], list[int]] = {}
        """For each run of ORDER tokens, the positions after its occurrences, oldest first."""
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[TokenId]) -> None:
        known, places = self.tokens, self._places
        for token in tokens:
            known.append(token)
            if len(known) >= ORDER:
                found = places.setdefault(tuple(known[-ORDER:]), [])
                found.append(len(known))
                if len(found) > _MOST_PLACES:
                    del found[0]

    def places(self, tail: Sequence[TokenId]) -> list[int]:
        """Positions after occurrences of the last ORDER tokens of `tail`, oldest first."""
        return self._places.get(tuple(tail[-ORDER:]), []) if len(tail) >= ORDER else []

    def continuation(self, tail: Sequence[TokenId], limit: int) -> Continuation | None:
        """At most `limit` tokens that followed the longest match of the end of `tail`; None: no match.

        Where several places match equally far, each next token is the one that most of them have.
        """
        best: list[int] = []
        longest = ORDER
        for place in self.places(tail):
            if place >= len(self.tokens) or self.tokens[place] == END:
                continue
            match = self._match(place, tail)
            if match > longest:
                best, longest = [], match
            if match == longest:
                best.append(place)
        return Continuation(self._vote(best, limit), longest) if best else None

    def _match(self, place: int, tail: Sequence[TokenId]) -> int:
        """How many tokens before `place` equal the end of `tail`; at least ORDER."""
        most, length = min(place, len(tail), _LONGEST_MATCH), ORDER
        while length < most and self.tokens[place - 1 - length] == tail[-1 - length]:
            length += 1
        return length

    def _vote(self, places: list[int], limit: int) -> list[TokenId]:
        known, total = self.tokens, len(places)
        draft: list[TokenId] = []
        while places and len(draft) < limit:
            by_token: dict[TokenId, list[int]] = {}
            for place in reversed(places):  # the newest wins a tie
                if place < len(known) and known[place] != END:
                    by_token.setdefault(known[place], []).append(place + 1)
            if not by_token:
                break
            token, agreeing = max(by_token.items(), key=lambda item: len(item[1]))
            if len(agreeing) < _UNLIKELY * total:
                break
            draft.append(token)
            places = agreeing[::-1]
        return draft
