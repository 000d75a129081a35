"""Chooses workers: shows the sessions to the placement policy, and makes a route of its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import Final

from router.config.settings import RouterConfig
from router.dispatch.adapters.adapted_work import load_ahead
from router.dispatch.adapters.table import NO_ADAPTER, Digest
from router.dispatch.failures import no_worker_ready, pages_quarantined
from router.dispatch.routing.route import CachedElsewhere, Pick, Route
from router.dispatch.sequence import SequenceState
from router.dispatch.workers.liveness import CircuitState, Liveness
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.request_pages import request_pages
from router.dispatch.workers.session import WorkerSession
from router.placement import (
    AdapterPlace,
    ClusterModel,
    ClusterView,
    Drafting,
    HandoffRule,
    Health,
    LinkView,
    NoWorker,
    Placement,
    PlacementPolicy,
    Preference,
    QuarantinedPages,
    Reach,
    ReadPlacement,
    RequestView,
    StepWork,
    Targets,
    WorkerFacts,
    policy_for,
)
from router.placement.policies.by_load import least_loaded, pick
from router.placement.policies.estimates import ways_for
from router.placement.view import WorkerId
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

FIRST_VERSION: Final = "default"
"""Name of the weights of the start."""

MakePolicy = Callable[[str], PlacementPolicy]
"""From the device of the workers to a policy."""

_ITL_TARGET_MS: Final = {"cuda": 20.0, "cpu": 100.0}
"""TPOT target of placement if --itl-target-ms is not given or 0, by device."""
_LINK: Final = LinkView(bytes_per_s=10e9, latency_s=0.004)
"""Assumed link until the link check and handoffs have measured the bandwidth."""
_TYPICAL_TOKENS: Final = 4096
"""Typical length of a prompt. Longer ones have less KV per token, if layers have windows."""
_PREFERS: Final = {ROLE_PREFILL: Preference.PREFILL, ROLE_DECODE: Preference.DECODE}


def configured_policy(config: RouterConfig) -> MakePolicy:
    """The policy of `--mode`, `--routing` and the targets."""

    def make(device: str) -> PlacementPolicy:
        itl_ms = config.itl_target_ms or _ITL_TARGET_MS["cuda" if device.startswith("cuda") else "cpu"]
        targets = Targets(ttft_s=config.ttft_target_ms / 1e3, tpot_s=itl_ms / 1e3)
        return policy_for(config.mode, config.routing, targets)

    return make


class Selector:
    """Chooses workers for sequences, in every mode."""

    def __init__(
        self,
        registry: Registry,
        make_policy: MakePolicy,
        clock: Callable[[], float] = time.monotonic,
        *,
        pulls: bool = False,
        measures: bool = False,
    ) -> None:
        """`make_policy` is called once, when the first worker is known. `pulls`: workers get cached KV from
        each other; False: only that of attempts that failed. `measures`: collect step times even
        if the policy makes no predictions."""
        self._measures = measures
        self._pulls = pulls
        self._registry = registry
        self._make_policy = make_policy
        self._clock = clock
        self._reads = ReadPlacement()
        self.versions: Mapping[str, str] = {"": FIRST_VERSION}
        """Weights that workers may compute with, by tag: first those that requests are to have."""
        self._known: dict[WorkerId, WorkerSession] = {}
        """Sessions by key; also those that get no requests now, but whose requests still run."""

    @cached_property
    def policy(self) -> PlacementPolicy:
        """Needs a connected worker."""
        return self._make_policy(self._registry.computing()[0].info.device)

    @cached_property
    def cluster(self) -> ClusterModel:
        """Needs a connected worker."""
        info = self._registry.computing()[0].info
        sent = info.peer.page_bytes * request_pages(info).of(_TYPICAL_TOKENS)
        return ClusterModel(kv_bytes_per_token=sent // _TYPICAL_TOKENS, link=_LINK)

    def is_ready(self, adapter: Digest = NO_ADAPTER) -> bool:
        """Whether there are ready workers that can compute a sequence with this adapter."""
        return any(not adapter or session.adapters.may_use(adapter) for session in self._ready())

    def version_for(self, sequence: SequenceState) -> str:
        """Tag of the weights for the next attempt: the first ones with room, else the first that a ready
        worker has."""
        if len(self.versions) == 1 or not self.is_ready(sequence.adapter):
            return next(iter(self.versions))
        present = [tag for tag in self.versions if self._view(sequence.adapter, tag).workers]
        return next((tag for tag in present if self._has_room(sequence, tag)), present[0])

    def _has_room(self, sequence: SequenceState, weights: str) -> bool:
        pool = self.policy.decode_workers(self._view(sequence.adapter, weights).workers)
        return any(worker.has_slot and worker.room.has_room(sequence.num_tokens) for worker in pool)

    def route(self, sequence: SequenceState, avoid: Set[str], *, as_answer: bool = False) -> Route | None:
        """Workers for the next attempt; None: it should wait until some have room.

        `avoid`: names of the workers on which it failed. `as_answer`: of a read that is computed where the
        prompt of an answer would be. Raises AttemptFailed if no worker is ready, and
        Unavailable if waiting is useless: the pages that it needs are quarantined on every worker.
        """
        if not self.is_ready(sequence.adapter):
            raise no_worker_ready(self._registry.complaints())
        view = self._view(sequence.adapter, sequence.weights)
        request = self._request(sequence, avoid)
        try:
            placement: Placement | None
            if as_answer:
                found = self.policy.place(request, view)
                placement = found and Placement(found.prefill_worker, found.prefill_worker, found.why)
            elif sequence.is_prefill_only:
                placement = self._reads.place(request, view, sequence.identity.read_on)
                sequence.identity.read_on = placement.prefill_worker
            else:
                placement = self.policy.place(request, view)
        except QuarantinedPages:
            raise pages_quarantined(sequence.num_tokens) from None
        if placement is None:
            return None
        self.cluster.placed(request, placement.prefill_worker, view.now)
        known = str(ways_for(placement.prefill_worker, request, view))
        parts = [str(placement.why), known, self._of_adapter(sequence.adapter, placement)]
        why = "; ".join(filter(None, parts))
        return self._route(sequence, avoid, placement, why)

    def encodes_elsewhere(self, sequence: SequenceState, seconds: float, token_s: float) -> bool:
        """Whether an encode worker, which has the rows of the images in `seconds`, is to encode them.

        `token_s`: time for each token of an image on a worker that has encoded none.
        """
        if not self.policy.predicts or not self.is_ready(sequence.adapter):
            return True
        view = self._view(sequence.adapter)
        request = replace(self._request(sequence, set()), image_token_s=token_s)
        try:
            return self.policy.encodes_elsewhere(request, seconds, view)
        except (NoWorker, QuarantinedPages):
            return True

    def check(self, tokens: int) -> None:
        """Raises Unavailable if a sequence of this many tokens would wait for pages in quarantine."""
        if self.is_ready() and self.policy.handoffs is not HandoffRule.NEVER:
            pool = self.policy.decode_workers(self._view().workers)
            if not any(worker.room.fits(tokens) for worker in pool):
                raise pages_quarantined(tokens)

    def lone_decode_s(self) -> float:
        """Time of a step with one short answer, on the slowest ready worker; 0 without any."""
        if not self.is_ready():
            return 0.0
        pool = self.policy.decode_workers(self._view().workers)
        return max(worker.step_time.seconds(StepWork(decodes=1)) for worker in pool)

    def completed(self, output_tokens: int) -> None:
        """An answer ended by a stop or by its length, with this many tokens."""
        if self._known:
            self.cluster.completed(output_tokens)

    def probe(self, pick: Pick) -> Route:
        """Route of a health probe of the workers that `pick` returns."""
        if self.policy.handoffs is HandoffRule.NEVER:
            return Route(pick, is_local=True, why="probe")
        sessions = {role: pick(role) for role in (ROLE_PREFILL, ROLE_DECODE)}
        is_local = sessions[ROLE_PREFILL] is sessions[ROLE_DECODE]
        return Route(
            sessions.__getitem__, is_local=is_local, why="probe", on_transfer=self.cluster.transferred
        )

    def migration_target(
        self, tokens: int, leaving: str, adapter: Digest, weights: str
    ) -> WorkerSession | None:
        """Worker to which a running answer moves from `leaving`: the least loaded that has room and the
        answer's weights, with or after loading its adapter; None without."""
        if not self.is_ready(adapter):
            return None
        others = [
            worker
            for worker in self.policy.decode_workers(self._view(adapter, weights).workers)
            if self._known[worker.id].worker_id != leaving and worker.room.has_room(tokens)
        ]
        request = RequestView(
            prompt_tokens=tokens,
            expected_output=1,
            arrived=self._clock(),
            adapter=self._adapter_places(adapter),
        )
        return self._known[pick(others, request, least_loaded, 0).id] if others else None

    def prefill_workers(self) -> list[WorkerSession]:
        """Ready workers that compute prompts."""
        if not self.is_ready():
            return []
        return [self._known[worker.id] for worker in self.policy.prefill_workers(self._view().workers)]

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """Connected workers that a health probe may use for this role, also those that are not ready."""
        sessions = self._registry.computing()
        if sessions and self.policy.handoffs is HandoffRule.ANY_WAY:
            return sessions
        return [session for session in sessions if session.role == role]

    def _route(self, sequence: SequenceState, avoid: Set[str], placement: Placement, why: str) -> Route:
        prefill, decode = self._known[placement.prefill_worker], self._known[placement.decode_worker]
        source = None
        if placement.source is not None:
            source = CachedElsewhere(self._known[placement.source.worker], placement.source.tokens)
        if placement.is_local:
            return Route(
                lambda _: self._session(decode.key),
                is_local=True,
                why=why,
                source=source,
                on_transfer=self.cluster.transferred,
                on_promotion=self.cluster.promoted,
            )
        claim, weights = decode.load.promise(sequence.num_tokens), sequence.weights
        if (load := load_ahead(sequence.prototype, decode.adapters)) is not None:
            decode.send(load)  # its pages are reserved later, when the prompt is begun

        def pick(role: worker_pb2.Role) -> WorkerSession:
            if role == ROLE_PREFILL:
                return self._session(prefill.key)
            claim.end()
            try:
                view = self._view(sequence.adapter, weights)
                chosen = self.policy.decode_worker(placement, self._request(sequence, avoid), view)
            except NoWorker:
                rolls = len(self.versions) > 1
                raise no_worker_ready(self._registry.complaints(), planned=rolls) from None
            return self._session(chosen)

        return Route(
            pick,
            is_local=False,
            why=why,
            source=source,
            claim=claim,
            on_transfer=self.cluster.transferred,
            on_promotion=self.cluster.promoted,
            may_wait=self.policy.handoffs is not HandoffRule.ANY_WAY or _order(prefill) < _order(decode),
        )

    def _session(self, key: WorkerId) -> WorkerSession:
        """Raises AttemptFailed if it was lost since it was chosen."""
        session = self._known.get(key)
        if session is None or not session.alive:
            raise no_worker_ready(self._registry.complaints())
        return session

    def _request(self, sequence: SequenceState, avoid: Set[str]) -> RequestView:
        left = max(sequence.sampling.max_tokens - len(sequence.output), 1)
        return RequestView(
            prompt_tokens=sequence.num_tokens,
            expected_output=0 if sequence.is_prefill_only else self.cluster.expected_output(left),
            arrived=sequence.waterfall.arrival,
            cached={key: _cached_tokens(session, sequence) for key, session in self._known.items()},
            on_tiers={
                key: tokens
                for key, session in self._known.items()
                if (tokens := session.load.cached.tier_tokens(sequence.blocks(session.load.page_size)))
            },
            stored={
                key: session.load.cached.stored_tokens(sequence.blocks(session.load.page_size))
                for key, session in self._known.items()
                if (self._pulls or avoid) and session.info.shares_prefixes
            },
            avoid={key for key, session in self._known.items() if session.worker_id in avoid},
            adapter=self._adapter_places(sequence.adapter),
            images=sequence.images,
            awaited=sequence.awaited_rows(self._clock()),
        )

    def _adapter_places(self, adapter: Digest) -> dict[WorkerId, AdapterPlace]:
        """Empty without an adapter."""
        if not adapter:
            return {}
        size = max(session.adapters.sizes.get(adapter, 0) for session in self._known.values())
        return {key: session.adapters.place(adapter, size) for key, session in self._known.items()}

    def _of_adapter(self, adapter: Digest, placement: Placement) -> str:
        """Where the adapter has to be loaded first."""
        places = self._adapter_places(adapter)
        return ", ".join(
            f"{self._known[key].worker_id} loads the adapter in {places[key].load_s * 1e3:.0f} ms"
            for key in dict.fromkeys((placement.prefill_worker, placement.decode_worker))
            if key in places and places[key].load_s
        )

    def _ready(self) -> list[WorkerSession]:
        ready = [*self._registry.ready(ROLE_PREFILL), *self._registry.ready(ROLE_DECODE)]
        return [session for session in ready if session.info.served.tag in self.versions]

    def _view(self, adapter: Digest = NO_ADAPTER, weights: str | None = None) -> ClusterView:
        """The ready workers with the weights that have the adapter or may load it. O(workers)."""
        cluster, known = self.cluster, self._known
        for key in [key for key, session in known.items() if not session.alive]:
            del known[key]
            cluster.remove(key)
        health: dict[WorkerId, Health] = {}
        for session in self._ready():
            key = session.key
            if key not in known:
                known[key] = session
                cluster.add(_facts(session), session.load)
                if self._measures or self.policy.predicts or session.info.shares_prefixes:
                    session.on_step = partial(_observe, cluster, key)
                session.on_encoded = partial(_encoded, cluster, key)
            cluster.prefers(key, _PREFERS[session.role])
            health[key] = _health(session)
        view = cluster.view(self._clock(), health)
        if not adapter and (weights is None or len(self.versions) == 1):
            return view

        def is_fit(session: WorkerSession) -> bool:
            return (weights is None or weights == session.info.served.tag) and (
                not adapter or session.adapters.may_use(adapter)
            )

        return replace(view, workers=tuple(w for w in view.workers if is_fit(known[w.id])))


def _cached_tokens(session: WorkerSession, sequence: SequenceState) -> int:
    """Prompt tokens of the sequence that the worker has cached or is expected to have. O(log tokens)."""
    return session.load.cached.matching_tokens(sequence.blocks(session.load.page_size))


def _observe(cluster: ClusterModel, key: WorkerId, step: worker_pb2.StepWork) -> None:
    """A worker has measured a step."""
    work = StepWork(step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens)
    answers = step.answers or 1
    drafting = Drafting(step.decodes / answers, step.tokens / answers)
    cluster.stepped(key, work, step.seconds, drafting)


def _encoded(cluster: ClusterModel, key: WorkerId, encoded: worker_pb2.Encoded) -> None:
    for image in encoded.items:
        cluster.encoded(key, image.num_tokens, image.end_s - image.begin_s)


def _health(session: WorkerSession) -> Health:
    if session.liveness is not Liveness.GOOD:
        return Health.LATE
    return Health.GOOD if session.breaker.state is CircuitState.CLOSED else Health.SUSPECT


def _order(session: WorkerSession) -> tuple[int, str]:
    """A fixed order of workers. A handoff may wait for pages only if its target follows its sender in this
    order, so workers cannot deadlock."""
    return session.info.role, session.worker_id


def _facts(session: WorkerSession) -> WorkerFacts:
    info = session.info
    return WorkerFacts(
        id=session.key,
        prefers=_PREFERS[session.role],
        chunk_tokens=info.chunked_prefill_size or info.max_model_len,
        step_target_s=info.step_target_s or None,
        pause_target_s=info.pause_target_s or None,
        total_pages=info.num_pages,
        page_size=max(info.page_size, 1),
        max_running=info.max_running_requests or None,
        shares_prefixes=info.shares_prefixes,
        reach=Reach(tuple((window.tokens, window.share) for window in info.windows)),
    )
