"""A state machine that is nothing but its table, and a deadline that progress moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = ["Machine", "Table"]

_LONGEST: Final = 10
"""A handoff that goes on and on may take this many times its timeout, and then is given up all the same."""

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)

Table: TypeAlias = Mapping[tuple[S, E], tuple[S, tuple[A, ...]]]
"""(state, event) -> (next state, actions). A pair that is missing is an event nobody may act on."""


class Machine(Generic[S, E, A]):
    """One handoff's state on one side, with the time by which something has to happen."""

    __slots__ = ("_limit", "_patience", "_table", "_timeout_s", "deadline", "state")

    def __init__(
        self, table: Table[S, E, A], state: S, now: float, timeout_s: float, patience: Mapping[S, float]
    ) -> None:
        """`timeout_s`: how long a handoff may make no progress.

        `patience` names the states that no progress leads out of: their deadline starts anew, that many
        seconds after each entry.
        """
        self.state = state
        self.deadline = now + timeout_s
        self._timeout_s = timeout_s
        self._limit = now + timeout_s * _LONGEST
        self._table = table
        self._patience = patience

    def on(self, event: E, now: float) -> tuple[A, ...] | None:
        """Moves on; returns what to do, or None if the event does not belong in this state."""
        step = self._table.get((self.state, event))
        if step is None:
            return None
        self.state, actions = step
        if self.state in self._patience:
            self.deadline = now + self._patience[self.state]
        return actions

    def progress(self, now: float, timeout_s: float = math.inf) -> None:
        """Something useful happened: from here on, `timeout_s` or the handoff's own, whichever is shorter.

        Many long prompts on a slow machine share it: each gets a chunk in its turn, and all take long. A
        deadline on the whole would fail them in a circle, each computed again and again.
        """
        self._timeout_s = min(self._timeout_s, timeout_s)
        if self.state not in self._patience:
            self.deadline = min(now + self._timeout_s, self._limit)
