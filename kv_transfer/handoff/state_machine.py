"""Table-driven state machine with a deadline that progress extends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = ["Machine", "Table"]

_LONGEST: Final = 10
"""A handoff is aborted after this many times its timeout, even if it makes progress."""

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)

Table: TypeAlias = Mapping[tuple[S, E], tuple[S, tuple[A, ...]]]
"""(state, event) -> (next state, actions). Events without an entry are unexpected and ignored."""


class Machine(Generic[S, E, A]):
    """State of one side of a handoff, with its deadline."""

    __slots__ = ("_limit", "_patience", "_table", "_timeout_s", "deadline", "state")

    def __init__(
        self, table: Table[S, E, A], state: S, now: float, timeout_s: float, patience: Mapping[S, float]
    ) -> None:
        """`timeout_s`: timeout without progress.

        `patience`: states with a timeout of their own, which progress does not extend, in seconds.
        """
        self.state = state
        self.deadline = now + timeout_s
        self._timeout_s = timeout_s
        self._limit = now + timeout_s * _LONGEST
        self._table = table
        self._patience = patience

    def on(self, event: E, now: float) -> tuple[A, ...] | None:
        """Make a transition; returns its actions, or None if the event is unexpected in this state."""
        step = self._table.get((self.state, event))
        if step is None:
            return None
        self.state, actions = step
        if self.state in self._patience:
            self.deadline = now + self._patience[self.state]
        return actions

    def progress(self, now: float, timeout_s: float = math.inf) -> None:
        """Restart the deadline, with the shorter of `timeout_s` and the handoff's own timeout.

        With a timeout on the whole handoff, many concurrent long prompts on a slow machine would all fail,
        and fail again when retried.
        """
        self._timeout_s = min(self._timeout_s, timeout_s)
        if self.state not in self._patience:
            self.deadline = min(now + self._timeout_s, self._limit)
