"""Adaptive mode: a placement policy chooses the workers of every request.

`router.placement` decides on plain numbers. This module keeps its ledger up to date with commands, events and
measured steps, and turns a placement into a route.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Final

from router.config.settings import RouterConfig
from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.failures import no_worker_ready
from router.dispatch.routing.route import Pick, Route, Untracked
from router.dispatch.routing.worker_choice import Promise, WorkerChoice, cached_tokens
from router.dispatch.sequence import Sequence
from router.placement import (
    AdaptivePlacement,
    Ledger,
    Link,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
    StepWork,
    Targets,
    WorkerFacts,
)
from router.placement.view import WorkerId
from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["AdaptivePlacing", "adaptive"]

_ITL_TARGET_MS: Final = {"cuda": 20.0, "cpu": 100.0}
"""TPOT target of placement if --itl-target-ms is not given or 0, by device."""
_LINK: Final = Link(bytes_per_s=10e9, latency_s=0.004)
"""Assumed link until the link check and handoffs have measured the bandwidth."""
_PREFERS: Final = {ROLE_PREFILL: Preference.PREFILL, ROLE_DECODE: Preference.DECODE}


def adaptive(config: RouterConfig, registry: Registry, choice: WorkerChoice) -> AdaptivePlacing:
    """Adaptive placing with the TTFT and ITL targets of `config`."""

    def policy(device: str) -> PlacementPolicy:
        return AdaptivePlacement(_targets(config, device))

    return AdaptivePlacing(registry, choice, policy)


def _targets(config: RouterConfig, device: str) -> Targets:
    itl_ms = config.itl_target_ms or _ITL_TARGET_MS["cuda" if device.startswith("cuda") else "cpu"]
    return Targets(ttft_s=config.ttft_target_ms / 1e3, itl_s=itl_ms / 1e3)


class AdaptivePlacing:
    """Implements `Placing`. Every worker can prefill, decode, or do both for a sequence.

    A retry runs on one worker only: the least loaded on which it did not fail. A sequence also runs on the
    chosen decode worker only if that has no room for its KV now: it queues there without holding pages, where
    a handoff would hold all its pages on the prefill worker.
    """

    def __init__(
        self,
        registry: Registry,
        choice: WorkerChoice,
        policy: Callable[[str], PlacementPolicy],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy(device)` is called once, when the first worker is known."""
        self._registry = registry
        self._choice = choice
        self._make_policy = policy
        self._clock = clock
        self._policy: PlacementPolicy | None = None
        self._ledger: Ledger | None = None
        self._known: dict[WorkerId, WorkerSession] = {}
        """By incarnation; also workers that are late or suspect, whose requests still run."""
        self._usable: Set[WorkerId] = frozenset()
        """Those that get requests now."""
        self._pages: dict[WorkerId, int] = {}
        self._ids = itertools.count(1)

    def is_ready(self) -> bool:
        return bool(self._choice.ready_workers())

    def has_room(self, want: AdmissionRequest) -> bool:
        """Always: requests queue at the workers. Raises Unavailable if the sequence fits none of them."""
        self._choice.preferred(want.tokens, want.avoid)
        return True

    def claim(self, want: AdmissionRequest) -> Claim | None:
        return None  # made in `route`

    def move_target(self, tokens: int, leaving: str) -> WorkerSession | None:
        return self._choice.move_target(self._choice.preferred(), tokens, leaving)

    def prefill_workers(self) -> list[WorkerSession]:
        return self._choice.ready_workers()

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        return self._registry.sessions()

    def probe(self, pick: Pick) -> Route:
        prefill, decode = pick(ROLE_PREFILL), pick(ROLE_DECODE)
        ledger, _ = self._look(self._choice.ready_workers() or [prefill, decode])
        tracker = _Probed(ledger, _key(prefill), _key(decode))
        return Route(pick, is_local=prefill is decode, why="probe", tracker=tracker)

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        if avoid:
            session = self._choice.pick_any(sequence.num_tokens, avoid)
            return None if session is None else _local(session, "adaptive: retry on another worker")
        sessions = self._choice.preferred(sequence.num_tokens)
        if not sessions:
            return None
        return self._place(sequence, sessions)

    def _place(self, sequence: Sequence, sessions: list[WorkerSession]) -> Route:
        now = self._clock()
        ledger, policy = self._look(sessions)
        left = max(sequence.sampling.max_tokens - len(sequence.output), 1)
        request = RequestView(
            prompt_tokens=sequence.num_tokens,
            expected_output=ledger.expected_output(left),
            arrived=sequence.waterfall.arrival,
            cached={key: cached_tokens(session, sequence) for key, session in self._known.items()},
        )
        placement = policy.place(request, ledger.view(now, self._usable))
        why = _explain(placement)
        prefill, decode = self._known[placement.prefill_worker], self._known[placement.decode_worker]
        if prefill is not decode and not self._choice.has_room(decode, sequence.num_tokens):
            placement = Placement(placement.decode_worker, placement.decode_worker, placement.why)
            prefill, why = decode, f"{why}; the decode worker has no room for the KV"
        number = next(self._ids)
        ledger.placed(number, request, placement, now)
        tracker = _Tracked(ledger, number, placement, sequence)
        if prefill is decode:
            return _local(decode, why, tracker)

        def pick(role: worker_pb2.Role) -> WorkerSession:
            session = prefill if role == ROLE_PREFILL else decode
            if not session.alive:
                raise no_worker_ready(self._registry.complaints())
            return session

        claim = Promise(decode.load, sequence.num_tokens)
        may_wait = _order(prefill) < _order(decode)
        return Route(
            pick,
            is_local=False,
            why=why,
            claim=claim,
            tracker=tracker,
            may_wait=may_wait,
        )

    def _look(self, sessions: list[WorkerSession]) -> tuple[Ledger, PlacementPolicy]:
        """Update the ledger to the ready workers. O(workers)."""
        if self._ledger is None or self._policy is None:
            info = sessions[0].info
            self._ledger = Ledger(kv_bytes_per_token=info.peer.page_bytes // info.page_size, link=_LINK)
            self._policy = self._make_policy(info.device)
        ledger = self._ledger
        current = {_key(session): session for session in sessions}
        self._usable = current.keys()
        for key in [key for key, session in self._known.items() if not session.alive]:
            del self._known[key]
            self._pages.pop(key, None)
            ledger.remove(key)
        for key, session in current.items():
            if self._known.get(key) is not session:
                self._known[key] = session
                self._pages.pop(key, None)
                ledger.add(_facts(key, session))
                session.on_step = _Measured(ledger, key)
            ledger.prefers(key, _PREFERS.get(session.role, Preference.BOTH))
            pages = session.load.view().free_pages
            if self._pages.get(key) != pages:
                self._pages[key] = pages
                ledger.reported(key, pages)
        return ledger, self._policy


class _Measured:
    """Feeds a worker's measured steps into the ledger."""

    def __init__(self, ledger: Ledger, key: WorkerId) -> None:
        self._ledger = ledger
        self._key = key

    def __call__(self, step: worker_pb2.StepWork) -> None:
        work = StepWork(step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens)
        self._ledger.stepped(self._key, work, step.seconds)


class _Probed(Untracked):
    """A probe's tracker: records the bandwidth of its handoff, and does not count as load."""

    def __init__(self, ledger: Ledger, source: WorkerId, destination: WorkerId) -> None:
        self._ledger = ledger
        self._pair = source, destination

    def handed_off(self, num_bytes: int, seconds: float) -> None:
        self._ledger.transferred(*self._pair, num_bytes, seconds)


class _Tracked:
    """Implements `Tracker`: keeps the ledger up to date with one attempt."""

    def __init__(self, ledger: Ledger, number: int, placement: Placement, sequence: Sequence) -> None:
        self._ledger = ledger
        self._number = number
        self._placement = placement
        self._prompt_tokens = sequence.num_tokens
        self._tokens = 0

    def progress(self, num_computed: int) -> None:
        self._ledger.progressed(self._number, max(self._prompt_tokens - num_computed, 1))

    def tokens(self, count: int) -> None:
        decoded = count
        if not self._tokens:
            self._ledger.read(self._number)
            decoded -= 1
        self._tokens += count
        if decoded:
            self._ledger.decoded(self._placement.decode_worker, decoded)

    def arrived(self) -> None:
        self._ledger.arrived(self._number)

    def moved(self, session: WorkerSession) -> None:
        self._placement = replace(self._placement, decode_worker=_key(session))
        self._ledger.moved(self._number, _key(session), self._tokens)

    def handed_off(self, num_bytes: int, seconds: float) -> None:
        placement = self._placement
        self._ledger.transferred(placement.prefill_worker, placement.decode_worker, num_bytes, seconds)

    def ended(self) -> None:
        self._ledger.ended(self._number, self._tokens)


def _local(session: WorkerSession, why: str, tracker: _Tracked | None = None) -> Route:
    if tracker is None:
        return Route(lambda _: session, is_local=True, why=why)
    return Route(lambda _: session, is_local=True, why=why, tracker=tracker)


def _key(session: WorkerSession) -> WorkerId:
    """Key of one incarnation of a worker: measurements do not carry over to a restarted process."""
    return f"{session.worker_id}@{session.info.epoch:x}"


def _order(session: WorkerSession) -> tuple[int, str]:
    """A fixed order of workers. A handoff may wait for pages only if its target follows its sender in this
    order, so workers cannot deadlock."""
    return session.info.role, session.worker_id


def _facts(key: WorkerId, session: WorkerSession) -> WorkerFacts:
    info = session.info
    return WorkerFacts(
        id=key,
        prefers=_PREFERS.get(session.role, Preference.BOTH),
        chunk_tokens=info.chunked_prefill_size or info.max_model_len,
        step_target_s=info.step_target_s or None,
        pause_target_s=info.pause_target_s or None,
        total_pages=info.num_pages,
        page_size=info.page_size,
        max_running=info.max_running_requests or None,
    )


def _explain(placement: Placement) -> str:
    """One line: the chosen placement with its prediction, and the runner-up."""
    why = placement.why
    if not why.candidates:
        return why.policy
    chosen, *others = why.candidates
    text = (
        f"{why.policy}: TTFT {chosen.ttft_s * 1e3:.0f} ms, TPOT {chosen.tpot_s * 1e3:.1f} ms,"
        f" {chosen.expected_misses:.3f} misses expected"
    )
    if others:
        name, other = others[0].decode_worker.partition("@")[0], others[0].prefill_worker.partition("@")[0]
        text += f"; next best {other} to {name} with {others[0].expected_misses:.3f}"
    return text
