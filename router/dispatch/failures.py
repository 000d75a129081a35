"""Maps failures of workers to a retry or to an error for the client, and keeps the state of retries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.dispatch.workers.events import Loss, WorkerLost
from router.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, RouterError, Unavailable
from rpc.baton.v1 import worker_pb2

_RETRY_AFTER_S: Final = 5.0
"""Retry-After when no worker is ready: about the time of a worker restart."""

_FAULTS: Final = (
    worker_pb2.FAILURE_CODE_HANDOFF,
    worker_pb2.FAILURE_CODE_INTERNAL,
)


class AttemptFailed(Exception):
    """The attempt failed, but another may succeed. `verdict`: the client's error if it is not retried."""

    def __init__(
        self,
        reason: str,
        worker_id: str | None,
        verdict: RouterError,
        *,
        planned: bool = False,
        is_suspect: bool = False,
        at_once: bool = False,
    ) -> None:
        super().__init__(reason)
        self.worker_id = worker_id
        """Worker that failed; the next attempt avoids it."""
        self.verdict = verdict
        self.planned = planned
        """The worker was drained, or this router was late; the attempt does not count against the limit."""
        self.is_suspect = is_suspect
        """The worker's process ended while it computed the request, so the request may have caused it."""
        self.at_once = at_once
        """Another worker is prepared for the next attempt, which does not wait."""


def failure_of(
    failed: worker_pb2.Failed, worker_id: str, *, router_late: bool = False
) -> AttemptFailed | RouterError:
    """AttemptFailed if a retry makes sense, else the error for the client.

    The next attempt avoids `worker_id`, which reported the failure, unless the sender of the KV gave up, or
    this router was late: then the worker at the other end had ended the router's session.
    """
    reason = f"{worker_id}: {failed.message}"
    match failed.code:
        case worker_pb2.FAILURE_CODE_INVALID:
            return InvalidRequest(failed.message)
        case worker_pb2.FAILURE_CODE_DEADLINE:
            return DeadlineExceeded(failed.message)
        case worker_pb2.FAILURE_CODE_OVERLOADED:
            return AttemptFailed(
                reason, worker_id, Overloaded("every worker's queue is full; try again later")
            )
        case worker_pb2.FAILURE_CODE_MEDIA:
            return AttemptFailed(reason, None, Unavailable(failed.message))
        case worker_pb2.FAILURE_CODE_ADAPTER:
            return AttemptFailed(reason, worker_id, Unavailable(failed.message))
        case worker_pb2.FAILURE_CODE_WEIGHTS:
            return AttemptFailed(reason, None, Unavailable(failed.message), planned=True)
        case worker_pb2.FAILURE_CODE_HANDOFF | worker_pb2.FAILURE_CODE_SENDER:
            blamed = None if router_late or failed.code == worker_pb2.FAILURE_CODE_SENDER else worker_id
            verdict = Unavailable(f"the KV handoff failed: {failed.message}")
            return AttemptFailed(reason, blamed, verdict, planned=router_late)
        case _:
            return Internal(f"the model could not process this request: {failed.message}")


def loss_of(loss: WorkerLost, worker_id: str, *, is_running: bool) -> AttemptFailed:
    """`is_running`: the worker was computing the request, not just queueing it."""
    return AttemptFailed(
        f"{worker_id}: {loss.reason}",
        None if loss.how is Loss.ROUTER_LATE else worker_id,
        Unavailable("the worker that computed this request was lost"),
        planned=loss.how in (Loss.PLANNED, Loss.ROUTER_LATE),
        is_suspect=is_running and loss.how is Loss.BROKEN,
    )


def is_worker_fault(failed: worker_pb2.Failed) -> bool:
    """Whether a worker may be at fault, rather than the request or the load."""
    return failed.code in _FAULTS


def no_worker_ready(errors: Iterable[str], *, planned: bool = False) -> AttemptFailed:
    """`errors`: the last error of each worker that is not ready. `planned`: others with other weights are."""
    causes = "; ".join(errors)
    message = f"no worker is ready ({causes})" if causes else "no worker is ready"
    verdict = Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    return AttemptFailed("no worker is ready", None, verdict, planned=planned)


def pages_quarantined(tokens: int) -> Unavailable:
    """No worker has this many tokens of KV outside of quarantine."""
    return Unavailable(
        f"no worker has KV pages for {tokens} tokens: pages of failed handoffs are in quarantine",
        retry_after_s=_RETRY_AFTER_S,
        public=True,
    )


def lost_in_migration() -> AttemptFailed:
    """A move was cancelled after the source had released the request.

    The answer is recomputed, without counting an attempt.
    """
    reason = "the move was cancelled after its source had released the request"
    return AttemptFailed(reason, None, Unavailable(reason), planned=True)


def withdrawn() -> AttemptFailed:
    """The service is paused: the attempt is made again when it is resumed."""
    return AttemptFailed("the service is paused", None, Unavailable("the service is paused"), planned=True)


def handed_over(worker_id: str) -> AttemptFailed:
    """Another worker goes on, since the weights of this one are to be replaced."""
    reason = f"{worker_id}: its weights are to be replaced"
    return AttemptFailed(reason, None, Unavailable(reason), planned=True, at_once=True)


def deadline_exceeded() -> DeadlineExceeded:
    return DeadlineExceeded("the request's timeout passed before it was finished")


_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_MAX_CRASHES: Final = 2
"""Consecutive worker crashes after which a sequence is not retried."""
_CLEARED_AFTER: Final = 8
"""New tokens since the last crash, or failure, that reset the count: the sequence is past that point.

More than one, since the first token comes from the retry's prefill and not from the step that crashed."""


class RetryState:
    """Failures of a sequence since it last made progress."""

    def __init__(self, sequence_id: str, max_attempts: int) -> None:
        self.avoid: set[str] = set()
        """Workers on which the sequence failed."""
        self.ended: list[str] = []
        """Consecutive workers whose process ended while it computed the sequence."""
        self._sequence_id = sequence_id
        self._max_attempts = self._left = max_attempts
        self._num_failures = 0
        self._waits = True
        self._output_at_crash = 0
        self._output_at_failure = 0

    def failed(self, failure: AttemptFailed, num_output: int) -> RouterError | None:
        """Record a failed attempt after `num_output` tokens of the answer.

        Returns the error for the client if there is no further attempt, else None.
        """
        if num_output - self._output_at_failure >= _CLEARED_AFTER:
            self.avoid.clear()
            self._left, self._num_failures = self._max_attempts, 0
        self._output_at_failure = num_output
        self._waits = not failure.at_once
        self._num_failures += self._waits
        if failure.worker_id is not None:
            self.avoid.add(failure.worker_id)
            if failure.is_suspect:
                if num_output - self._output_at_crash >= _CLEARED_AFTER:
                    self.ended.clear()
                self.ended.append(failure.worker_id)
                self._output_at_crash = num_output
        if self.is_poison:
            return crashed_workers(self._sequence_id)
        self._left -= not failure.planned
        return None if self._left else failure.verdict

    @property
    def pause_s(self) -> float:
        """Seconds before the next attempt, more with each failure."""
        if not self._waits:
            return 0.0
        return min(_FIRST_PAUSE_S * 4.0 ** (self._num_failures - 1), _LONGEST_PAUSE_S)

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
