"""The tokens of one answer in order, from any number of workers.

Two workers may compute one answer for a moment, and their streams are not ordered: tokens may arrive early,
or twice. Tokens are ordered by their positions.
"""

from __future__ import annotations

from rpc.baton.v1 import worker_pb2

__all__ = ["Diverged", "TokenOrder"]


class Diverged(Exception):
    """Two workers computed different tokens for one position."""


class TokenOrder:
    """Takes events; returns each token once, in order."""

    def __init__(self, begin: int) -> None:
        """`begin`: position of the first token that is awaited."""
        self.tokens: list[int] = []
        """Given out so far."""
        self.begin = begin
        self._early: dict[int, tuple[worker_pb2.Tokens, float]] = {}
        """By position."""

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.begin + len(self.tokens)

    def take(self, event: worker_pb2.Tokens, at: float) -> list[tuple[worker_pb2.Tokens, float]]:
        """Events that can be delivered now, with their arrival times: this one, and later ones that waited
        for it.

        Raises Diverged if a token differs from one at the same position.
        """
        if event.position > self.position:
            known = self._early.get(event.position)
            if known is None or len(known[0].ids) < len(event.ids):
                self._early[event.position] = event, at
            return []
        ready = self._new_part(event, at)
        while self._early and (first := min(self._early)) <= self.position:
            ready += self._new_part(*self._early.pop(first))
        return ready

    def _new_part(self, event: worker_pb2.Tokens, at: float) -> list[tuple[worker_pb2.Tokens, float]]:
        known = self.position - event.position
        if known > 0 and event.ids:
            begin = event.position - self.begin
            if begin < 0 or list(event.ids[:known]) != self.tokens[begin : begin + len(event.ids)]:
                raise Diverged(f"two workers computed different tokens from position {event.position} on")
            if known >= len(event.ids):
                return []
            event = _behind(event, known)
        self.tokens.extend(event.ids)
        return [(event, at)]


def _behind(event: worker_pb2.Tokens, count: int) -> worker_pb2.Tokens:
    """Without the first `count` tokens."""
    rest = worker_pb2.Tokens()
    rest.CopyFrom(event)
    del rest.ids[:count], rest.logprobs[:count]
    rest.position += count
    return rest
