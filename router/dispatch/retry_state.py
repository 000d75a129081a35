"""Retry state of a sequence: attempts left, workers to avoid, and whether it crashes workers."""

from __future__ import annotations

from typing import Final

from router.dispatch.failures import AttemptFailed
from router.errors import Internal, RouterError

__all__ = ["RetryState", "crashed_workers"]

_MAX_CRASHES: Final = 2
"""Consecutive worker crashes after which a sequence is not retried."""
_CLEARED_AFTER: Final = 8
"""New tokens since the last crash that reset the count: the sequence is past the point of that crash.

More than one, since the first token comes from the retry's prefill and not from the step that crashed."""


class RetryState:
    def __init__(self, sequence_id: str, max_attempts: int) -> None:
        self.avoid: set[str] = set()
        """Workers on which the sequence failed."""
        self.ended: list[str] = []
        """Consecutive workers whose process ended while it computed the sequence."""
        self._sequence_id = sequence_id
        self._left = max_attempts
        self._output_at_end = 0

    def failed(self, failure: AttemptFailed, num_output: int) -> RouterError | None:
        """Record a failed attempt after `num_output` tokens of the answer.

        Returns the error for the client if there is no further attempt, else None.
        """
        if failure.worker_id is not None:
            self.avoid.add(failure.worker_id)
            if failure.is_suspect:
                if num_output - self._output_at_end >= _CLEARED_AFTER:
                    self.ended.clear()
                self.ended.append(failure.worker_id)
                self._output_at_end = num_output
        if self.is_poison:
            return crashed_workers(self._sequence_id)
        self._left -= not failure.planned
        return None if self._left else failure.verdict

    @property
    def left(self) -> int:
        return self._left

    @property
    def is_poison(self) -> bool:
        """Whether the sequence most likely crashes the workers that compute it."""
        return len(self.ended) >= _MAX_CRASHES


def crashed_workers(sequence_id: str) -> Internal:
    """The client's error. It does not name workers; the id refers to the router's log."""
    return Internal(
        f"The workers that computed this request ended, one after the other; it is not tried again "
        f"(request {sequence_id}).",
        code="request_ended_workers",
    )
