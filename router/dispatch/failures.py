"""What a failure at a worker means for the request: try again, or tell the client, and what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, RouterError, Unavailable
from router.workers.events import Loss, WorkerLost
from rpc.baton.v1 import worker_pb2

__all__ = ["AttemptFailed", "failure_of", "loss_of", "nobody_is_ready", "out_of_time", "speaks_against"]

_RETRY_AFTER_S: Final = 5.0
"""What clients are told when no worker is there: a restarted one is back after about so long."""

_FAULTS: Final = (worker_pb2.FAILURE_CODE_HANDOFF, worker_pb2.FAILURE_CODE_INTERNAL)


class AttemptFailed(Exception):
    """This attempt is lost, but another one may do. `verdict` is for the client when there is no other."""

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
        """Who failed; to be avoided next time."""
        self.verdict = verdict
        self.planned = planned
        """The request only moves: the attempt does not count."""
        self.is_suspect = is_suspect
        """The worker's process ended while it computed the request, which may have caused that."""


def failure_of(failed: worker_pb2.Failed, worker_id: str) -> AttemptFailed | RouterError:
    """AttemptFailed where another attempt makes sense, else what the client is told."""
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
    """`complaints`: for each worker that is not ready, what was last heard of it."""
    troubles = "; ".join(complaints)
    message = f"no worker can take the request now ({troubles})" if troubles else "no worker is ready"
    verdict = Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    return AttemptFailed("no worker is ready", None, verdict)


def out_of_time() -> DeadlineExceeded:
    return DeadlineExceeded("the request's timeout passed before it was finished")
