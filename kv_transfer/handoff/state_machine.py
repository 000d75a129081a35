"""Table-driven state machine with a deadline that progress extends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar

_LONGEST: Final = 10
"""A handoff is aborted after this many times its timeout, even if it makes progress."""

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)

Table: TypeAlias = Mapping[tuple[S, E], tuple[S, tuple[A, ...]]]
"""(state, event) -> (next state, actions). Events without an entry are unexpected and ignored."""


class StateMachine(Generic[S, E, A]):
    """State of one side of a handoff, with its deadline."""

    __slots__ = ("_limit", "_state_timeouts", "_table", "_timeout_s", "deadline", "state")

    def __init__(
        self, table: Table[S, E, A], state: S, now: float, timeout_s: float, state_timeouts: Mapping[S, float]
    ) -> None:
        """`timeout_s`: timeout without progress.

        `state_timeouts`: states with a timeout of their own, in seconds from the entry and from every
        transition back into the state that has actions. Progress does not extend it.
        """
        self.state = state
        self.deadline = now + timeout_s
        self._timeout_s = timeout_s
        self._limit = now + timeout_s * _LONGEST
        self._table = table
        self._state_timeouts = state_timeouts

    def on(self, event: E, now: float) -> tuple[A, ...] | None:
        """Make a transition; returns its actions, or None if the event is unexpected in this state."""
        step = self._table.get((self.state, event))
        if step is None:
            return None
        entered = step[0] is not self.state
        self.state, actions = step
        # Not at an event that changes nothing: a peer that repeats a message must not extend the deadline.
        if self.state in self._state_timeouts and (entered or actions):
            self.deadline = now + self._state_timeouts[self.state]
        return actions

    def progress(self, now: float, timeout_s: float = math.inf) -> None:
        """Restart the deadline, with the shorter of `timeout_s` and the handoff's own timeout.

        With a timeout on the whole handoff, many concurrent long prompts on a slow machine would all fail,
        and fail again when retried.
        """
        self._timeout_s = min(self._timeout_s, timeout_s)
        if self.state not in self._state_timeouts:
            self.deadline = min(now + self._timeout_s, self._limit)
