"""Maps failures of workers to a retry or to an error for the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, RouterError, Unavailable
from router.workers.events import Loss, WorkerLost
from rpc.baton.v1 import worker_pb2

__all__ = [
    "AttemptFailed",
    "deadline_exceeded",
    "failure_of",
    "is_worker_fault",
    "loss_of",
    "lost_in_move",
    "no_worker_ready",
    "pages_quarantined",
]

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
    ) -> None:
        super().__init__(reason)
        self.worker_id = worker_id
        """Worker that failed; the next attempt avoids it."""
        self.verdict = verdict
        self.planned = planned
        """The worker was drained; the attempt does not count against the limit."""
        self.is_suspect = is_suspect
        """The worker's process ended while it computed the request, so the request may have caused it."""


def failure_of(failed: worker_pb2.Failed, worker_id: str) -> AttemptFailed | RouterError:
    """AttemptFailed if a retry makes sense, else the error for the client.

    The next attempt avoids `worker_id`, which reported the failure, unless the sender of the KV gave up.
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
        case worker_pb2.FAILURE_CODE_HANDOFF | worker_pb2.FAILURE_CODE_SENDER:
            blamed = None if failed.code == worker_pb2.FAILURE_CODE_SENDER else worker_id
            return AttemptFailed(reason, blamed, Unavailable(f"the KV handoff failed: {failed.message}"))
        case _:
            return Internal(f"the model could not process this request: {failed.message}")


def loss_of(loss: WorkerLost, worker_id: str, *, is_running: bool) -> AttemptFailed:
    """`is_running`: the worker was computing the request, not just queueing it."""
    return AttemptFailed(
        f"{worker_id}: {loss.reason}",
        worker_id,
        Unavailable("the worker that computed this request was lost"),
        planned=loss.how is Loss.PLANNED,
        is_suspect=is_running and loss.how is Loss.BROKEN,
    )


def is_worker_fault(failed: worker_pb2.Failed) -> bool:
    """Whether a worker may be at fault, rather than the request or the load."""
    return failed.code in _FAULTS


def no_worker_ready(errors: Iterable[str]) -> AttemptFailed:
    """`errors`: the last error of each worker that is not ready."""
    causes = "; ".join(errors)
    message = f"no worker is ready ({causes})" if causes else "no worker is ready"
    verdict = Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    return AttemptFailed("no worker is ready", None, verdict)


def pages_quarantined(tokens: int) -> Unavailable:
    """No worker has this many tokens of KV outside of quarantine."""
    return Unavailable(
        f"no worker has KV pages for {tokens} tokens: pages of failed handoffs are in quarantine",
        retry_after_s=_RETRY_AFTER_S,
        public=True,
    )


def lost_in_move() -> AttemptFailed:
    """A move was cancelled after the source had released the request.

    The answer is recomputed, without counting an attempt.
    """
    reason = "the move was cancelled after its source had released the request"
    return AttemptFailed(reason, None, Unavailable(reason), planned=True)


def deadline_exceeded() -> DeadlineExceeded:
    return DeadlineExceeded("the request's timeout passed before it was finished")
