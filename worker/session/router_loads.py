"""Which router has the worker compute what."""

from __future__ import annotations

from collections.abc import Iterable

from rpc.baton.v1 import worker_pb2
from worker.session.jobs import Job
from worker.session.router_session import RouterSession


def router_loads(sessions: Iterable[RouterSession], jobs: Iterable[Job]) -> list[worker_pb2.RouterLoad]:
    """The part of every connected router, those without requests included. Costs O(jobs)."""
    loads = {session.router: worker_pb2.RouterLoad(router=session.router) for session in sessions}
    for job in jobs:
        load, request = loads.get(job.session.router), job.request
        if load is None:
            continue  # its session has just ended
        prompt, context = len(request.prompt), request.num_tokens
        left = max(prompt - request.num_computed, 0)
        load.requests += 1
        # The cache may hold tokens of the answer too, of a request that continues here.
        load.tokens += max(prompt - (request.num_cached or 0), 0)
        load.queued_tokens += left
        if not left:
            load.decodes += 1
            load.context_tokens += context
    return [loads[name] for name in sorted(loads)]
