"""Interface between the frontends and the dispatcher: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from router.dispatch.request_status import RequestStatus
from router.dispatch.token_stream import TokenStream
from rpc.baton.v1 import router_pb2, worker_pb2

OnCut: TypeAlias = Callable[[RequestStatus, router_pb2.Timings], None]
"""Called with the stage and the timings of a sequence that ended before its last delta."""


def ignore_cut(status: RequestStatus, timings: router_pb2.Timings) -> None:
    """Does nothing."""


class Dispatcher(Protocol):
    """Runs one sequence on the cluster, in any mode."""

    async def generate(
        self, work: worker_pb2.Work, stream: TokenStream, on_cut: OnCut = ignore_cut
    ) -> router_pb2.Timings:
        """Deliver the tokens to `stream`; returns when the last one, with the finish reason, is delivered.

        If the reader finds the end of the text itself, at a stop string, the sequence ends there, and counts
        as stopped, not as aborted. Cancelling the call aborts the request on all its workers. It arrives with
        the call. `on_cut` is called if an admitted sequence ends by an error, a deadline, or its caller.
        Raises RouterError, after delivering the tokens that arrived before, and any error of the reader.
        """
        ...

    def release_session(self, tenant: str, key: str) -> None:
        """End what requests of this tenant and key have retained, on all workers."""
        ...

    def ready(self) -> bool:
        """Whether there are ready workers for a request."""
        ...

    def workers(self, role: worker_pb2.Role) -> int:
        """Number of workers of a role that can be used now."""
        ...
