"""One worker's part in an attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass

from common.block_hash import BlockHash
from router.dispatch.failures import AttemptFailed, failure_of, loss_of, speaks_against
from router.errors import RouterError
from router.workers.events import WorkerLost
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

__all__ = ["Part"]


@dataclass(slots=True, eq=False)
class Part:
    """One worker's part in an attempt."""

    session: WorkerSession
    request_id: int
    tokens: int
    fresh: int
    """Of those, tokens that the worker did not have cached."""
    blocks: list[BlockHash]
    active: bool = True
    """It may hold something of the request: it counts as load, and is told when the attempt is given up."""
    asked: float = 0.0
    """time.monotonic() of the command; the worker counts a request's seconds from its arrival there."""
    begun: bool = False
    """It computes the request, which no longer queues there."""

    def ask(self, command: worker_pb2.Command) -> None:
        """Sends the command that makes the worker hold something of the request."""
        self.asked = time.monotonic()
        self.session.send(command)
        self.session.load.sent(self.session.num_sent, self.tokens)

    def done(self) -> None:
        """The worker did what it was asked for."""
        if self.active:
            self._end()
            self.session.breaker.request_done()

    def failed(self, failed: worker_pb2.Failed) -> AttemptFailed | RouterError:
        """The worker says that it cannot; returns what that means for the request."""
        self._end()
        if speaks_against(failed):
            self.session.breaker.request_failed()
        return failure_of(failed, self.session.worker_id)

    def lost(self, loss: WorkerLost) -> AttemptFailed:
        """The worker will say nothing any more; returns what that means for the request."""
        begun = self.begun and self.active
        self._end()
        return loss_of(loss, self.session.worker_id, begun=begun)

    def leave(self) -> None:
        self.session.forget(self.request_id)
        if self.active:
            self.session.abort(self.request_id)
            self._end()

    def _end(self) -> None:
        if self.active:
            self.active = False
            self.session.load.remove(self.fresh)
            self.session.cached.forget(self.blocks)
