"""The requests of a worker, their deadlines, and what they are as load of each router."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.core.events import Verified
from engine.core.request import Request, RequestId
from kv_transfer import request_digest
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.router_session import RouterSession


@dataclass(slots=True, eq=False)
class Job:
    """One attempt at one sequence on this worker. Times are on the engine loop's clock."""

    request: Request
    session: RouterSession
    arrival: float
    deadline: float
    """math.inf: none."""
    sampling: sampling_pb2.SamplingParams
    """Sampling parameters of the client; the engine may compute only the first token."""
    weights: str = ""
    """Identity of the weights that compute it, if its KV may be sent or received."""
    name: str = ""
    """The client's request id."""
    traceparent: str = ""
    """W3C Trace Context."""
    chunks: list[worker_pb2.Span] = field(default_factory=list)
    """Time spans of the prefill chunks of a request without an outgoing handoff."""
    received: int = 0
    """Tokens whose KV another worker sent."""
    pull_s: float = 0.0
    """How long it waited for KV of another worker's cache before it was queued."""
    pulled: int = 0
    """Tokens whose KV came from that cache."""
    adapter_load_s: float = 0.0
    """From its arrival until its adapter was loaded; 0: it was."""
    preempted_at: float = math.inf
    """Time of the last preemption; math.inf: never."""
    verified: Verified | None = None
    """Drafted tokens of the latest step, until its tokens are reported."""
    reported_cached: bool = False
    """Whether the number of cached prompt tokens was reported."""

    @property
    def id(self) -> RequestId:
        return self.request.id

    @property
    def label(self) -> str:
        """For logs."""
        return f"{self.name or self.id} ({self.traceparent or 'no trace'})"

    def add_chunk(self, upto: int, began: float, ended: float) -> None:
        """Prompt tokens [0, upto) are computed since a step that ran from `began` to `ended`."""
        last = self.chunks[-1] if self.chunks else None
        known = max(self.received, self.request.num_cached or 0)
        first = last.first_token + last.num_tokens if last else known
        self.chunks.append(
            worker_pb2.Span(
                begin_s=began - self.arrival,
                end_s=ended - self.arrival,
                first_token=first,
                num_tokens=max(upto - first, 0),
            )
        )

    def digest(self, num_tokens: int) -> int:
        """Digest of the first `num_tokens` tokens with their origin, the weights and the sampling parameters.

        Both workers compute it for themselves; a mismatch fails the handoff. O(num_tokens).
        """
        request, sampling = self.request, self.sampling.SerializeToString(deterministic=True)
        origin = self.weights.encode(), request.namespace
        return request_digest(request.keys(0, num_tokens), (*origin, sampling))


class Jobs:
    """Jobs by id. No events follow for a removed job."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._deadlines: list[tuple[float, RequestId]] = []
        """Heap of deadlines. Entries of removed jobs are skipped; `add` removes them when there are many."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._jobs

    def add(self, job: Job) -> None:
        self._jobs[job.id] = job
        if len(self._deadlines) > 2 * len(self._jobs):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._jobs]
            heapq.heapify(self._deadlines)
        if job.deadline < math.inf:
            heapq.heappush(self._deadlines, (job.deadline, job.id))

    def get(self, request_id: RequestId) -> Job | None:
        return self._jobs.get(request_id)

    def take(self, request_id: RequestId) -> Job | None:
        """Remove a job and return it; None if it was removed before."""
        return self._jobs.pop(request_id, None)

    def of(self, session: RouterSession) -> list[Job]:
        return [job for job in self._jobs.values() if job.session is session]

    def next_deadline(self) -> float:
        """The earliest deadline; math.inf: none."""
        while self._deadlines and self._deadlines[0][1] not in self._jobs:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def overdue(self, now: float) -> list[Job]:
        """Jobs whose deadline has passed; each is reported once."""
        late: list[Job] = []
        while self.next_deadline() <= now:
            _, request_id = heapq.heappop(self._deadlines)
            late.append(self._jobs[request_id])
        return late


def router_loads(sessions: Iterable[RouterSession], jobs: Iterable[Job]) -> list[worker_pb2.RouterLoad]:
    """The part of every connected router, those without requests included. Costs O(jobs)."""
    loads = {
        session.router: worker_pb2.RouterLoad(router=session.router, without_ray=session.without_ray)
        for session in sessions
    }
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
