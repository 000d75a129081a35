"""Merges the token streams of several workers into one answer, ordered by position.

During a move two workers may decode the same answer. Their streams are not ordered relative to each other, so
a token may arrive early or twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from rpc.baton.v1 import worker_pb2


class Diverged(Exception):
    """Two workers computed different tokens for one position."""


class TokenOrder:
    """Reorders token events and drops duplicates."""

    def __init__(self, tokens: list[int]) -> None:
        """`tokens`: the answer so far, to which accepted tokens are appended."""
        self._tokens = tokens
        self._early: dict[int, tuple[worker_pb2.Tokens, float]] = {}
        """Events ahead of `position`, with their arrival times; by position."""

    @property
    def position(self) -> int:
        """Position of the next token."""
        return len(self._tokens)

    def take(self, event: worker_pb2.Tokens, at: float) -> Iterable[tuple[worker_pb2.Tokens, float]]:
        """Accept an event; returns the events that are now in order, with their arrival times.

        Raises Diverged if a token differs from one at the same position.
        """
        position = len(self._tokens)
        if event.position == position and not self._early:
            self._tokens.extend(event.ids)
            return ((event, at),)
        if event.position > position:
            known = self._early.get(event.position)
            if known is None or len(known[0].ids) < len(event.ids):
                self._early[event.position] = event, at
            return ()
        ready = self._new_part(event, at)
        while self._early and (first := min(self._early)) <= len(self._tokens):
            ready += self._new_part(*self._early.pop(first))
        return ready

    def _new_part(self, event: worker_pb2.Tokens, at: float) -> list[tuple[worker_pb2.Tokens, float]]:
        known = len(self._tokens) - event.position
        if known > 0 and event.ids:
            if list(event.ids[:known]) != self._tokens[event.position :][: len(event.ids)]:
                raise Diverged(f"two workers computed different tokens from position {event.position} on")
            if known >= len(event.ids):
                return []
            event = _behind(event, known)
        self._tokens.extend(event.ids)
        return [(event, at)]


def _behind(event: worker_pb2.Tokens, count: int) -> worker_pb2.Tokens:
    """The event without its first `count` tokens."""
    rest = worker_pb2.Tokens()
    rest.CopyFrom(event)
    del rest.ids[:count], rest.logprobs[:count]
    rest.position += count
    return rest
