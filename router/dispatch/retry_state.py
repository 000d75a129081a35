"""Retry state of a sequence: attempts left, workers to avoid, and whether it crashes workers."""

from __future__ import annotations

from typing import Final

from router.dispatch.failures import AttemptFailed
from router.errors import Internal, RouterError

__all__ = ["RetryState", "ended_workers"]

_ENDED: Final = 2
"""Consecutive workers that ended while computing a sequence, after which it is not retried."""
_ACQUITTED: Final = 8
"""New tokens since the last such end that clear a sequence: it got past the point at which that worker ended.

More than one: the first comes from the prefill of the retry, and perhaps not from the step that failed."""


class RetryState:
    def __init__(self, sequence_id: str, max_attempts: int) -> None:
        self.avoid: set[str] = set()
        """Workers on which it failed."""
        self.ended: list[str] = []
        """Consecutive workers that ended while they computed it."""
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
                if num_output - self._output_at_end >= _ACQUITTED:
                    self.ended.clear()
                self.ended.append(failure.worker_id)
                self._output_at_end = num_output
        if self.is_poison:
            return ended_workers(self._sequence_id)
        self._left -= not failure.planned
        return None if self._left else failure.verdict

    @property
    def left(self) -> int:
        return self._left

    @property
    def is_poison(self) -> bool:
        """Whether the sequence most likely crashes the workers that compute it."""
        return len(self.ended) >= _ENDED


def ended_workers(sequence_id: str) -> Internal:
    """Message for the client: without worker names, with the id to look up in the log."""
    return Internal(
        f"The workers that computed this request ended, one after the other; it is not tried again "
        f"(request {sequence_id}).",
        code="request_ended_workers",
    )
