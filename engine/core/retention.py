"""Retention of a request's cached prefix, as its client asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.block_hash import BlockHash


@dataclass(frozen=True, slots=True)
class RetainedPrefix:
    tokens: int
    """Length of the beginning of the prompt."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Retention:
    """The beginnings of one sequence that its client asks to keep."""

    key: str = ""
    """Session key within its tenant; may be empty."""
    seconds: float = 0.0
    """For the whole sequence, from the end of the request; 0: it is not retained as a whole."""
    prefixes: tuple[RetainedPrefix, ...] = ()

    def parts(
        self, blocks: Sequence[BlockHash], page_size: int
    ) -> Iterator[tuple[Sequence[BlockHash], float]]:
        """What to retain of a sequence of blocks, and for how many seconds."""
        for prefix in self.prefixes:
            yield blocks[: prefix.tokens // page_size], prefix.seconds
        yield blocks, self.seconds
