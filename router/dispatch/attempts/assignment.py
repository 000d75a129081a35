"""What one worker does in an attempt: its load, its commands, and its end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from router.dispatch.adapters.table import NO_ADAPTER, Digest
from router.dispatch.failures import AttemptFailed, failure_of, is_worker_fault, loss_of
from router.dispatch.workers.events import WorkerLost
from router.dispatch.workers.session import WorkerSession
from router.errors import RouterError
from router.placement.account.load import Task
from rpc.baton.v1 import worker_pb2


@dataclass(slots=True, eq=False)
class Assignment:
    """One worker in an attempt. Counts as load of that worker while `active`."""

    session: WorkerSession
    request_id: int
    task: Task
    """Its entry in the account of the worker's load; it ends with the assignment."""
    adapter: Digest = NO_ADAPTER
    active: bool = True
    """The worker may hold state of the request, and gets an abort when the attempt ends."""
    sent_at: float = 0.0
    """time.monotonic() when the command was sent; the worker's timings count from its arrival."""
    is_running: bool = False
    """The worker computes the request, which has left its queue."""
    has_tokens: bool = False
    """The worker has sent tokens."""

    def send(self, command: worker_pb2.Command) -> None:
        """Send the command that starts or reserves the request on the worker."""
        self.sent_at = time.monotonic()
        if self.adapter:
            work: worker_pb2.Work = getattr(command, command.WhichOneof("kind")).work
            work.adapter_sources.extend(self.session.adapters.sources(self.adapter))
            self.session.adapters.brought(self.adapter)
        self.session.send(command)
        self.session.load.sent(self.session.num_sent, self.task)

    def done(self) -> None:
        """The worker has done what it was assigned."""
        if self.active:
            self._end()
            self.session.breaker.request_done()

    def failed(self, failed: worker_pb2.Failed) -> AttemptFailed | RouterError:
        """The worker reported a failure; returns the resulting error of the request.

        If the sender of the KV gave up, no worker is to blame: the sender reports its own failures, and the
        source of a move may refuse it for good reasons, such as the end of the answer.
        """
        self._end()
        if failed.code == worker_pb2.FAILURE_CODE_ADAPTER:
            self.session.adapters.refused(self.adapter)
        router_late = self.session.router_was_late
        if is_worker_fault(failed) and not router_late:
            self.session.breaker.request_failed()
        return failure_of(failed, self.session.worker_id, router_late=router_late)

    def dropped(self) -> None:
        """The assignment is not needed any more, which is no success or failure of the worker."""
        self._end()

    def lost(self, loss: WorkerLost) -> AttemptFailed:
        """The connection to the worker is lost; returns the resulting error of the request."""
        is_running = self.is_running and self.active
        self._end()
        return loss_of(loss, self.session.worker_id, is_running=is_running)

    def abort(self) -> None:
        """Ignore the worker's events from now on, and abort the request there if it is active."""
        self.session.forget(self.request_id)
        if self.active:
            self.session.abort(self.request_id)
            self._end()

    def _end(self) -> None:
        if self.active:
            self.active = False
            self.task.end()
