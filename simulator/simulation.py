"""The event loop of the simulation: arrivals, placement, workers, links, in simulated time.

    outcomes = Simulation(cluster, policy).run(arrivals)

A router places each request with the real placement module, from the reports of workers only. The decode
worker reserves pages when the first chunk is planned; finished chunks are sent while the next ones are
computed; decoding starts when all KV has arrived.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.kv.manager.reservations import Reservation
from router.placement import (
    PRIOR,
    ClusterModel,
    LinkView,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
    StepTime,
    StepWork,
    WorkerFacts,
)
from router.placement.account.load import Task, TaskPhase
from simulator.device import H200_8B, DeviceCosts
from simulator.outcome import SimulatedOutcome
from simulator.traffic import Arrival
from simulator.worker import SimWorker, StepReport, WorkerSettings


@dataclass(frozen=True, slots=True)
class LinkCosts:
    bytes_per_s: float = 170e9
    """Bandwidth per sender."""
    latency_s: float = 3.2e-3
    """Latency of a handoff: messages, polls and digests."""
    kv_bytes_per_token: int = 131_072
    state_bytes: int = 0
    """Size of a request's recurrent state, with which a handoff ends."""


NVLINK: Final = LinkCosts()
"""Link costs of Llama-3.1-8B's KV between two H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """`preferences` and `settings` have one entry per worker."""

    preferences: tuple[Preference, ...]
    settings: tuple[WorkerSettings, ...]
    device: DeviceCosts = H200_8B
    link: LinkCosts = NVLINK
    front_in_s: float = 3.5e-3
    """From the client to the worker's inbox."""
    front_out_s: float = 3.5e-3
    """From the worker to the client."""
    hop_s: float = 0.5e-3
    """From a worker to the router, or back."""
    prior: StepTime = PRIOR
    """The router's step-time model before the first report."""


@dataclass(slots=True)
class _Handoff:
    source: SimWorker
    destination: SimWorker
    request: Request
    """The source's."""
    view: RequestView
    placement: Placement
    promise: Task
    """Promise of room at the destination, until that is asked for pages."""
    reservation: Reservation | None = None
    computed: int = 0
    sent: int = 0
    sent_at: float = 0.0
    attached: bool = False
    """The source has the ticket."""
    done: bool = False
    """The prompt is computed."""


class Simulation:
    """Runs one list of arrivals on one cluster. Implements `worker.Listener`."""

    def __init__(self, cluster: ClusterSpec, policy: PlacementPolicy) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.workers = [
            SimWorker(number, settings, cluster.device, self)
            for number, settings in enumerate(cluster.settings)
        ]
        link = cluster.link
        self.model = ClusterModel(
            kv_bytes_per_token=link.kv_bytes_per_token, link=LinkView(link.bytes_per_s, link.latency_s)
        )
        for worker, prefers in zip(self.workers, cluster.preferences, strict=True):
            settings = worker.settings
            worker.load.report(worker.load_report(), 0)
            self.model.add(
                WorkerFacts(
                    id=str(worker.number),
                    prefers=prefers,
                    chunk_tokens=settings.chunk_tokens or settings.whole_tokens,
                    step_target_s=worker.engine.scheduler.config.step_target_s,
                    pause_target_s=worker.engine.scheduler.config.pause_s,
                    total_pages=settings.num_pages,
                    page_size=settings.page_size,
                    max_running=settings.max_running,
                    prior=cluster.prior,
                    reach=cluster.device.reach,
                ),
                worker.load,
            )
        self.outcomes: list[SimulatedOutcome] = []
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._serial = count()
        self._handoffs: dict[int, _Handoff] = {}
        self._tasks: dict[tuple[int, int], Task] = {}
        """Tasks by worker and request."""
        self._policy = policy
        self._held: deque[tuple[int, Arrival]] = deque()
        """Requests that the router holds back, in order of arrival."""
        self._link_free = [0.0] * len(self.workers)

    def run(self, arrivals: Sequence[Arrival], *, until: float = math.inf) -> list[SimulatedOutcome]:
        """One outcome per arrival, in order; answers that take longer than `until` are incomplete."""
        self.outcomes = [SimulatedOutcome(a.at, a.prompt_tokens, a.max_tokens) for a in arrivals]
        for number, arrival in enumerate(arrivals):
            self._at(arrival.at + self.cluster.front_in_s, self._arrive, (number, arrival))
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= until:
            self.now, _, do, argument = pop(events)
            do(argument)
        return self.outcomes

    def _at(self, at: float, do: Callable[..., None], argument: object) -> None:
        heapq.heappush(self._events, (at, next(self._serial), do, argument))

    # ------------------------------------------------------------------------------ the router

    def _arrive(self, numbered: tuple[int, Arrival]) -> None:
        self._held.append(numbered)
        self._send_held()

    def _send_held(self) -> None:
        """Send the requests that are held back, while workers have room for them."""
        while self._held:
            number, arrival = self._held[0]
            if not self._send(number, arrival):
                return
            self._held.popleft()

    def _send(self, number: int, arrival: Arrival) -> bool:
        """False: the router holds the request back."""
        prompt = arrival.prompt()
        request = RequestView(
            prompt_tokens=arrival.prompt_tokens,
            expected_output=self.model.expected_output(arrival.max_tokens),
            arrived=arrival.at + self.cluster.front_in_s,
            cached=self._cached(prompt),
        )
        placement = self._policy.place(request, self.model.view(self.now))
        if placement is None:
            return False
        self.model.placed(request, placement.prefill_worker, self.now)
        outcome = self.outcomes[number]
        outcome.prefill_worker = int(placement.prefill_worker)
        outcome.decode_worker = int(placement.decode_worker)
        source = self.workers[outcome.prefill_worker]
        limit = arrival.max_tokens if placement.is_local else 1
        engine_request = _request(number, prompt, limit)
        if not placement.is_local and arrival.max_tokens > 1:
            destination = self.workers[outcome.decode_worker]
            promise = destination.load.promise(arrival.prompt_tokens)
            handoff = _Handoff(source, destination, engine_request, request, placement, promise)
            self._handoffs[number] = handoff
        source.submit(engine_request, self.now)
        self._begin(
            TaskPhase.PREFILL if placement.is_local else TaskPhase.PREFILL_FOR_OTHER, source, number, request
        )
        return True

    def _begin(self, phase: TaskPhase, worker: SimWorker, number: int, request: RequestView) -> None:
        """A request was sent to a worker with its last command."""
        task = self._tasks[worker.number, number] = worker.load.begin(
            phase,
            request.prompt_tokens,
            cached=request.cached_by(str(worker.number), worker.settings.page_size),
            arrived_at=request.arrived,
            now=self.now,
        )
        worker.load.sent(worker.num_commands, task)

    def _end(self, worker: SimWorker, number: int) -> None:
        self._tasks.pop((worker.number, number)).end()

    def _cached(self, prompt: Sequence[int]) -> dict[str, int]:
        """The cached prefixes known to a prefix-aware router; here, exactly those in the cache."""
        cached = {}
        for worker in self.workers:
            cache = worker.engine.kv.cache
            blocks = cache.match(prompt[:-1], cache.root(), touch=False).blocks
            cached[str(worker.number)] = blocks * worker.settings.page_size
        return cached

    def _heard(self, heard: tuple[SimWorker, StepReport]) -> None:
        worker, report = heard
        self._take_in(worker, report)
        if report.load is not None:
            worker.load.report(report.load, report.num_commands)
        self._send_held()

    def _take_in(self, worker: SimWorker, report: StepReport) -> None:
        tasks, number = self._tasks, worker.number
        for request, computed in report.progress:
            tasks[number, request.id].progressed(computed)
        for request in report.tokens:
            tasks[number, request.id].produced(1)
        for request in report.ended:
            if request.id not in self._handoffs:
                self._end(worker, request.id)
                self.model.completed(self.outcomes[request.id].tokens)
        if (step := report.measured) is not None:
            work = StepWork(step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens)
            self.model.stepped(str(number), work, step.seconds)

    # ------------------------------------------------------------------------------ what workers call

    def wake(self, worker: SimWorker, at: float) -> None:
        self._at(at, self._turn, (worker, at))

    def _turn(self, due: tuple[SimWorker, float]) -> None:
        worker, at = due
        if worker.due == at:
            worker.turn(at)

    def started(self, worker: SimWorker, request: Request, now: float) -> None:
        self.outcomes[request.id].cached_tokens = request.num_cached or 0
        handoff = self._handoffs.get(request.id)
        if handoff is not None and handoff.source is worker:
            handoff.computed = request.num_cached or 0
            self._at(now + 2 * self.cluster.hop_s, self._reserve, handoff)

    def computed(self, worker: SimWorker, request: Request, upto: int, at: float) -> None:
        handoff = self._handoffs.get(request.id)
        if handoff is not None and handoff.source is worker:
            self._at(at, self._computed, (handoff, upto, False))

    def token(self, worker: SimWorker, request: Request, at: float) -> None:
        self.outcomes[request.id].token(at + self.cluster.front_out_s)

    def stepped(self, worker: SimWorker, report: StepReport) -> None:
        self._at(report.at + self.cluster.hop_s, self._heard, (worker, report))

    def keeps(self, worker: SimWorker, request: Request, at: float) -> bool:
        handoff = self._handoffs.get(request.id)
        if handoff is None or handoff.source is not worker:
            return False
        self._at(at, self._computed, (handoff, len(request.prompt), True))
        return True

    def lent(self, worker: SimWorker, reservation: Reservation, now: float) -> None:
        handoff = self._handoffs[reservation.request.id]
        handoff.reservation = reservation
        handoff.sent = reservation.first_token
        self._at(now + 2 * self.cluster.hop_s, self._attached, handoff)

    # ------------------------------------------------------------------------------ handoffs

    def _reserve(self, handoff: _Handoff) -> None:
        source = handoff.request
        limit = self.outcomes[source.id].max_tokens
        handoff.promise.end()
        view = self.model.view(self.now)
        number = int(self._policy.decode_worker(handoff.placement, handoff.view, view))
        handoff.destination = self.workers[number]
        self.outcomes[source.id].decode_worker = number
        handoff.destination.reserve(_request(source.id, source.prompt, limit), self.now)
        self._begin(TaskPhase.INCOMING, handoff.destination, source.id, handoff.view)

    def _attached(self, handoff: _Handoff) -> None:
        handoff.attached = True
        self._push(handoff)

    def _computed(self, computed: tuple[_Handoff, int, bool]) -> None:
        handoff, upto, done = computed
        handoff.computed = upto
        handoff.done |= done
        self._push(handoff)

    def _push(self, handoff: _Handoff) -> None:
        """Send what is computed and not sent yet; after the last piece, tell the destination."""
        if not handoff.attached:
            return
        link, sender = self.cluster.link, handoff.source.number
        tokens = max(0, handoff.computed - handoff.sent)
        begins = max(self.now, self._link_free[sender])
        state = link.state_bytes if handoff.done else 0
        ends = begins + (tokens * link.kv_bytes_per_token + state) / link.bytes_per_s
        self._link_free[sender] = ends
        handoff.sent = max(handoff.sent, handoff.computed)
        handoff.sent_at = max(handoff.sent_at, ends)
        if handoff.done:
            self._at(handoff.sent_at + link.latency_s, self._arrived, handoff)

    def _arrived(self, handoff: _Handoff) -> None:
        request, reservation = handoff.request, handoff.reservation
        assert reservation is not None
        del self._handoffs[request.id]
        reservation.request.output.extend(request.output)
        handoff.destination.admit_remote(reservation, self.now, handoff.computed)
        handoff.source.release(request, self.now)
        self._end(handoff.source, request.id)
        self._tasks[handoff.destination.number, request.id].arrived(request.num_tokens)


def _request(number: int, prompt: Sequence[int], max_tokens: int) -> Request:
    return Request(id=number, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True))
