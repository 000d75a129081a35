"""Maps failures of workers to a retry or to an error for the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, RouterError, Unavailable
from router.workers.events import Loss, WorkerLost
from rpc.baton.v1 import worker_pb2

__all__ = [
    "AttemptFailed",
    "failure_of",
    "loss_of",
    "moved_to_nobody",
    "nobody_is_ready",
    "out_of_time",
    "speaks_against",
]

_RETRY_AFTER_S: Final = 5.0
"""Retry-After when no worker is ready: about the time of a worker restart."""

_FAULTS: Final = (worker_pb2.FAILURE_CODE_HANDOFF, worker_pb2.FAILURE_CODE_INTERNAL)


class AttemptFailed(Exception):
    """The attempt failed, but another may succeed. `verdict`: the client's error if there is no other."""

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
        """Worker that failed, to be avoided by the next attempt."""
        self.verdict = verdict
        self.planned = planned
        """The worker was drained: does not count as an attempt."""
        self.is_suspect = is_suspect
        """The worker's process ended while it computed the request, which may be the cause."""


def failure_of(failed: worker_pb2.Failed, worker_id: str) -> AttemptFailed | RouterError:
    """AttemptFailed if a retry makes sense, else the error for the client."""
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
        case worker_pb2.FAILURE_CODE_HANDOFF:
            return AttemptFailed(reason, worker_id, Unavailable(f"the KV handoff failed: {failed.message}"))
        case _:
            return Internal(f"the model could not process this request: {failed.message}")


def loss_of(loss: WorkerLost, worker_id: str, *, begun: bool) -> AttemptFailed:
    """`begun`: the worker was computing the request, which had not just queued there."""
    return AttemptFailed(
        loss.reason,
        worker_id,
        Unavailable("the worker that computed this request went away"),
        planned=loss.how is Loss.PLANNED,
        is_suspect=begun and loss.how is Loss.BROKEN,
    )


def speaks_against(failed: worker_pb2.Failed) -> bool:
    """Whether the worker itself may be at fault, rather than the request or the load."""
    return failed.code in _FAULTS


def nobody_is_ready(complaints: Iterable[str]) -> AttemptFailed:
    """`complaints`: the last error of each worker that is not ready."""
    troubles = "; ".join(complaints)
    message = f"no worker can take the request now ({troubles})" if troubles else "no worker is ready"
    verdict = Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    return AttemptFailed("no worker is ready", None, verdict)


def moved_to_nobody() -> AttemptFailed:
    """A move was cancelled when it was already complete.

    The answer is computed again, without counting an attempt.
    """
    reason = "the answer had moved when its move was called off"
    return AttemptFailed(reason, None, Unavailable(reason), planned=True)


def out_of_time() -> DeadlineExceeded:
    return DeadlineExceeded("the request's timeout passed before it was finished")
