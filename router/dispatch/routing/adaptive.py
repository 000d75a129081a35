"""The mode in which a policy decides for every request where it is computed.

The decision is made by `router.placement`, which sees numbers alone. Here its view is kept up to date from
what this router sends and hears, and its answer becomes a route.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Final

from router.config.settings import RouterConfig
from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.evacuation import Movable
from router.dispatch.failures import nobody_is_ready
from router.dispatch.routing.route import Pick, Route, Untracked
from router.dispatch.routing.worker_choice import Promise, WorkerChoice, cached_tokens
from router.dispatch.sequence import Sequence
from router.placement import (
    AdaptivePlacement,
    Ledger,
    Link,
    Moves,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
    RunningAnswer,
    StepWork,
    Targets,
    WorkerFacts,
    remaining_tokens,
)
from router.placement.view import WorkerId
from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["AdaptivePlacing", "Relief", "adaptive"]

_ITL_TARGET_MS: Final = {"cuda": 20.0, "cpu": 100.0}
"""Bound on the mean time between tokens where --itl-target-ms is not given, or 0."""
_LINK: Final = Link(bytes_per_s=10e9, latency_s=0.004)
"""What a handoff is taken to cost until the link check, and handoffs after it, show the bandwidth."""
_PREFERS: Final = {ROLE_PREFILL: Preference.PREFILL, ROLE_DECODE: Preference.DECODE}


def adaptive(config: RouterConfig, registry: Registry, choice: WorkerChoice) -> AdaptivePlacing:
    """Places requests by the targets that `config` has."""

    def policy(device: str) -> PlacementPolicy:
        return AdaptivePlacement(_targets(config, device), splits=config.split_prompts)

    def moves(device: str) -> Moves:
        return Moves(_targets(config, device))

    return AdaptivePlacing(registry, choice, policy, moves if config.move_answers else None)


def _targets(config: RouterConfig, device: str) -> Targets:
    itl_ms = config.itl_target_ms or _ITL_TARGET_MS["cuda" if device.startswith("cuda") else "cpu"]
    return Targets(ttft_s=config.ttft_target_ms / 1e3, itl_s=itl_ms / 1e3)


class AdaptivePlacing:
    """Implements `Placing`. Every worker can take either part of a sequence, and both.

    A sequence that failed before is computed by one worker to its end, the least loaded that it did not fail
    on. So is one for whose KV the chosen decode worker has no room now: it waits there, where it holds
    nothing, rather than on the prefill worker with all its pages.
    """

    def __init__(
        self,
        registry: Registry,
        choice: WorkerChoice,
        policy: Callable[[str], PlacementPolicy],
        moves: Callable[[str], Moves] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy(device)` and `moves(device)` make these, once the first worker is known.

        `moves`: which running answers move; None: none.
        """
        self._registry = registry
        self._choice = choice
        self._make_policy = policy
        self._make_moves = moves
        self._clock = clock
        self._policy: PlacementPolicy | None = None
        self._moves: Moves | None = None
        self._ledger: Ledger | None = None
        self._known: dict[WorkerId, WorkerSession] = {}
        """By incarnation; also workers that are late or suspect, whose requests still run."""
        self._usable: Set[WorkerId] = frozenset()
        """Those that get requests now."""
        self._pages: dict[WorkerId, int] = {}
        self._ids = itertools.count(1)

    def is_ready(self) -> bool:
        return bool(self._choice.everyone())

    def has_room(self, want: AdmissionRequest) -> bool:
        """Requests queue at the workers; see the class."""
        return True

    def claim(self, want: AdmissionRequest) -> Claim | None:
        return None  # it comes with the route

    def refuge(self, tokens: int, leaving: str) -> WorkerSession | None:
        return self._choice.refuge(self._choice.preferred(), tokens, leaving)

    def relief(self, answers: Iterable[Movable]) -> Relief | None:
        """The running answer that should move now; None: none. O(answers) and O(workers)."""
        sessions = self._choice.preferred()
        if not sessions:
            return None
        ledger, policy = self._look(sessions)
        if self._moves is None:
            return None
        running = {id(answer): answer for answer in answers}
        seen = [seen for number, answer in running.items() if (seen := _running(number, answer, ledger))]
        prefill_only = policy.prefill_only if isinstance(policy, AdaptivePlacement) else frozenset()
        move = self._moves.review(ledger.view(self._clock(), self._usable), seen, prefill_only)
        if move is None:
            return None
        return Relief(running[move.answer], self._known[move.target], move.reason.value)

    def prefill_workers(self) -> list[WorkerSession]:
        return self._choice.everyone()

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        return self._registry.sessions()

    def probe(self, pick: Pick) -> Route:
        prefill, decode = pick(ROLE_PREFILL), pick(ROLE_DECODE)
        ledger, _ = self._look(self._choice.everyone() or [prefill, decode])
        tracker = _Probed(ledger, _key(prefill), _key(decode))
        return Route(pick, is_local=prefill is decode, why="probe", tracker=tracker)

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        if avoid:
            session = self._choice.pick_any(sequence.num_tokens, avoid)
            return None if session is None else _local(session, "adaptive: another worker after a failure")
        sessions = self._choice.preferred()
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
            prefill, why = decode, f"{why}; no room for its KV there now"
        number = next(self._ids)
        ledger.placed(number, request, placement, now)
        tracker = _Tracked(ledger, number, placement, sequence)
        if prefill is decode:
            return _local(decode, why, tracker)

        def pick(role: worker_pb2.Role) -> WorkerSession:
            session = prefill if role == ROLE_PREFILL else decode
            if not session.alive:
                raise nobody_is_ready(self._registry.complaints())
            return session

        claim = Promise(decode.load, sequence.num_tokens)
        may_wait = _order(prefill) < _order(decode)
        return Route(
            pick,
            is_local=False,
            why=why,
            claim=claim,
            split=placement.split,
            tracker=tracker,
            may_wait=may_wait,
        )

    def _look(self, sessions: list[WorkerSession]) -> tuple[Ledger, PlacementPolicy]:
        """Brings the ledger up to date with the workers that can be used now. O(workers)."""
        if self._ledger is None or self._policy is None:
            info = sessions[0].info
            self._ledger = Ledger(kv_bytes_per_token=info.peer.page_bytes // info.page_size, link=_LINK)
            self._policy = self._make_policy(info.device)
            self._moves = None if self._make_moves is None else self._make_moves(info.device)
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


@dataclass(frozen=True, slots=True)
class Relief:
    """A running answer, and where it should go on."""

    answer: Movable
    target: WorkerSession
    reason: str


def _running(number: int, answer: Movable, ledger: Ledger) -> RunningAnswer | None:
    """None for one that no worker decodes by itself now."""
    writer, progress = answer.writer, answer.progress
    if writer is None:
        return None
    expected = ledger.expected_output(progress.max_tokens)
    remaining = remaining_tokens(expected, progress.output_tokens, progress.max_tokens)
    return RunningAnswer(number, _key(writer), progress.context_tokens, remaining)


class _Measured:
    """Takes a worker's measured steps in."""

    def __init__(self, ledger: Ledger, key: WorkerId) -> None:
        self._ledger = ledger
        self._key = key

    def __call__(self, step: worker_pb2.StepWork) -> None:
        work = StepWork(step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens)
        self._ledger.stepped(self._key, work, step.seconds)


class _Probed(Untracked):
    """A probe says how fast its KV travels, and counts for nothing else."""

    def __init__(self, ledger: Ledger, source: WorkerId, destination: WorkerId) -> None:
        self._ledger = ledger
        self._pair = source, destination

    def handed_over(self, num_bytes: int, seconds: float) -> None:
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

    def handed_over(self, num_bytes: int, seconds: float) -> None:
        placement = self._placement
        self._ledger.transferred(placement.prefill_worker, placement.decode_worker, num_bytes, seconds)

    def ended(self) -> None:
        self._ledger.ended(self._number, self._tokens)


def _local(session: WorkerSession, why: str, tracker: _Tracked | None = None) -> Route:
    if tracker is None:
        return Route(lambda _: session, is_local=True, why=why)
    return Route(lambda _: session, is_local=True, why=why, tracker=tracker)


def _key(session: WorkerSession) -> WorkerId:
    """Of an incarnation: what is known of a process does not hold for its successor."""
    return f"{session.worker_id}@{session.info.epoch:x}"


def _order(session: WorkerSession) -> tuple[int, str]:
    """The same for as long as a worker lives. Handoffs wait for pages only of workers behind their sender, so
    no circle of workers can wait for each other; the last of all waits for nobody."""
    return session.info.role, session.worker_id


def _facts(key: WorkerId, session: WorkerSession) -> WorkerFacts:
    info = session.info
    return WorkerFacts(
        id=key,
        prefers=_PREFERS.get(session.role, Preference.BOTH),
        chunk_tokens=info.chunked_prefill_size or info.max_model_len,
        step_target_s=info.step_target_s or None,
        total_pages=info.num_pages,
        page_size=info.page_size,
    )


def _explain(placement: Placement) -> str:
    """One line: the choice, what was predicted for it, and what the runner-up would have cost."""
    why = placement.why
    if not why.candidates:
        return why.policy
    chosen, *others = why.candidates
    split = "" if chosen.split is None else f" split at token {chosen.split},"
    text = (
        f"{why.policy}:{split} TTFT {chosen.ttft_s * 1e3:.0f} ms, TPOT {chosen.tpot_s * 1e3:.1f} ms,"
        f" {chosen.expected_misses:.3f} misses expected"
    )
    if others:
        name, other = others[0].decode_worker.partition("@")[0], others[0].prefill_worker.partition("@")[0]
        text += f"; next best {other} to {name} with {others[0].expected_misses:.3f}"
    return text
