"""Adaptive mode: a placement policy chooses the workers of every request.

`router.placement` decides on plain numbers. This module tells it which sessions there are, and turns a
placement into a route.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import partial
from typing import Final

from router.config.settings import RouterConfig
from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.failures import no_worker_ready
from router.dispatch.routing.route import Pick, Route
from router.dispatch.routing.worker_choice import WorkerChoice, cached_tokens
from router.dispatch.sequence import Sequence
from router.placement import (
    AdaptivePlacement,
    ClusterModel,
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

__all__ = ["AdaptiveSelector", "adaptive"]

_ITL_TARGET_MS: Final = {"cuda": 20.0, "cpu": 100.0}
"""TPOT target of placement if --itl-target-ms is not given or 0, by device."""
_LINK: Final = Link(bytes_per_s=10e9, latency_s=0.004)
"""Assumed link until the link check and handoffs have measured the bandwidth."""
_PREFERS: Final = {ROLE_PREFILL: Preference.PREFILL, ROLE_DECODE: Preference.DECODE}


def adaptive(config: RouterConfig, registry: Registry, choice: WorkerChoice) -> AdaptiveSelector:
    """The selector of adaptive mode, with the TTFT and TPOT targets of `config`."""

    def policy(device: str) -> PlacementPolicy:
        return AdaptivePlacement(_targets(config, device))

    return AdaptiveSelector(registry, choice, policy)


def _targets(config: RouterConfig, device: str) -> Targets:
    itl_ms = config.itl_target_ms or _ITL_TARGET_MS["cuda" if device.startswith("cuda") else "cpu"]
    return Targets(ttft_s=config.ttft_target_ms / 1e3, tpot_s=itl_ms / 1e3)


class AdaptiveSelector:
    """Implements `WorkerSelector`. Every worker can prefill, decode, or do both for a sequence.

    A retry runs on one worker only, on which it did not fail. A sequence also runs on the chosen decode
    worker only if that has no room for its KV now: it queues there without holding pages, where a handoff
    would hold all its pages on the prefill worker.
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
        self._cluster: ClusterModel | None = None
        self._known: dict[WorkerId, WorkerSession] = {}
        """By key; also workers that are late or suspect, whose requests still run."""
        self._usable: Set[WorkerId] = frozenset()
        """Those that get requests now."""

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

    def completed(self, output_tokens: int) -> None:
        if self._cluster is not None:
            self._cluster.completed(output_tokens)

    def probe(self, pick: Pick) -> Route:
        prefill, decode = pick(ROLE_PREFILL), pick(ROLE_DECODE)
        cluster, _ = self._look(self._choice.ready_workers() or [prefill, decode])
        on_transfer = partial(cluster.transferred, prefill.key, decode.key)
        return Route(pick, is_local=prefill is decode, why="probe", on_transfer=on_transfer)

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        sessions = self._choice.preferred(sequence.num_tokens)
        if not sessions:
            return None
        if not avoid:
            return self._place(sequence, sessions, None)
        left = self._choice.preferred(sequence.num_tokens, avoid)
        others = [session for session in left if session not in sessions]
        return self._place(sequence, [*sessions, *others], frozenset(session.key for session in left))

    def _place(
        self, sequence: Sequence, sessions: list[WorkerSession], retry_on: frozenset[WorkerId] | None
    ) -> Route:
        now = self._clock()
        cluster, policy = self._look(sessions)
        left = max(sequence.sampling.max_tokens - len(sequence.output), 1)
        request = RequestView(
            prompt_tokens=sequence.num_tokens,
            expected_output=cluster.expected_output(left),
            arrived=sequence.waterfall.arrival,
            cached={key: cached_tokens(session, sequence) for key, session in self._known.items()},
            retry_on=retry_on,
        )
        placement = policy.place(request, cluster.view(now, self._usable))
        why = _explain(placement)
        prefill, decode = self._known[placement.prefill_worker], self._known[placement.decode_worker]
        if prefill is not decode and not self._choice.has_room(decode, sequence.num_tokens):
            prefill, why = decode, f"{why}; the decode worker has no room for the KV"
        cluster.placed(request, prefill.key, now)
        if prefill is decode:
            return Route(lambda _: decode, is_local=True, why=why)

        def pick(role: worker_pb2.Role) -> WorkerSession:
            session = prefill if role == ROLE_PREFILL else decode
            if not session.alive:
                raise no_worker_ready(self._registry.complaints())
            return session

        return Route(
            pick,
            is_local=False,
            why=why,
            claim=decode.load.promise(sequence.num_tokens),
            on_transfer=partial(cluster.transferred, prefill.key, decode.key),
            may_wait=_order(prefill) < _order(decode),
        )

    def _look(self, sessions: list[WorkerSession]) -> tuple[ClusterModel, PlacementPolicy]:
        """Update the model to the ready workers. O(workers)."""
        if self._cluster is None or self._policy is None:
            info = sessions[0].info
            self._cluster = ClusterModel(
                kv_bytes_per_token=info.peer.page_bytes // info.page_size, link=_LINK
            )
            self._policy = self._make_policy(info.device)
        cluster = self._cluster
        current = {session.key: session for session in sessions}
        self._usable = current.keys()
        for key in [key for key, session in self._known.items() if not session.alive]:
            del self._known[key]
            cluster.remove(key)
        for key, session in current.items():
            if key not in self._known:
                self._known[key] = session
                cluster.add(_facts(session), session.load)
                session.on_step = partial(_observe, cluster, key)
            cluster.prefers(key, _PREFERS.get(session.role, Preference.BOTH))
        return cluster, self._policy


def _observe(cluster: ClusterModel, key: WorkerId, step: worker_pb2.StepWork) -> None:
    """A worker has measured a step."""
    work = StepWork(step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens)
    cluster.stepped(key, work, step.seconds)


def _order(session: WorkerSession) -> tuple[int, str]:
    """A fixed order of workers. A handoff may wait for pages only if its target follows its sender in this
    order, so workers cannot deadlock."""
    return session.info.role, session.worker_id


def _facts(session: WorkerSession) -> WorkerFacts:
    info = session.info
    return WorkerFacts(
        id=session.key,
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
