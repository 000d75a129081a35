"""Runs sequences on the cluster: admission, attempts, retries, deadlines and metrics."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from router.config.settings import RouterConfig
from router.dispatch.admission.admission_queue import AdmissionGate, AdmissionGrant, AdmissionRequest
from router.dispatch.admission.pause_gate import PauseGate, PauseMode
from router.dispatch.admission.poison_requests import PoisonRequests
from router.dispatch.admission.prefill_queue import PrefillQueue, overloaded
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.attempts.disagg_attempt import DisaggAttempt
from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.encodes.encode_pool import EncodePool
from router.dispatch.failures import (
    AttemptFailed,
    RetryState,
    crashed_workers,
    deadline_exceeded,
    no_worker_ready,
    withdrawn,
)
from router.dispatch.interface import OnCut, ignore_cut
from router.dispatch.metrics.collectors import ClusterLoad
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.request_status import HELD_BACK, NO_WORKER, PAUSED, RequestStatus
from router.dispatch.routing.route import Pick, Route
from router.dispatch.routing.selector import MakePolicy, Selector, configured_policy
from router.dispatch.running_attempts import RunningAttempts
from router.dispatch.sequence import CURRENT_REQUEST, RequestIdentity, SequenceState
from router.dispatch.token_stream import DeliveryQueue, TextEnded, TokenStream
from router.dispatch.waterfall import Waterfall
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import Overloaded, RouterError, ShuttingDown
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2

_log = logging.getLogger(__name__)

_RETRY_STEPS: Final = 2
_RETRY_TOKENS: Final = 8192
"""Assumed tokens per step of a worker without chunked prefill."""


OnEnd: TypeAlias = Callable[[SequenceState, str, float], object]


class ClusterDispatcher:
    """Implements `interface.Dispatcher` for every mode."""

    def __init__(
        self,
        config: RouterConfig,
        registry: Registry,
        metrics: RouterMetrics,
        policy: MakePolicy | None = None,
        on_end: OnEnd = lambda _sequence, _outcome, _at: None,
    ) -> None:
        """`policy`: chooses workers; None: the configured one.

        `on_end(sequence, outcome, at)` is called at the end of every admitted sequence; it must not block.
        """
        self._on_end = on_end
        self._config = config
        self._registry = registry
        self.metrics = metrics
        self.selector: Final = Selector(
            registry,
            policy or configured_policy(config),
            pulls=config.pull_kv,
            measures=bool(config.cluster.autoscale),
        )
        self.prefill_queue: Final = PrefillQueue(
            config.max_queued_tokens,
            config.max_queue_wait,
            at_workers=lambda: sum(session.load.queued_tokens for session in registry.sessions()),
            held_back=lambda: len(self._admission),
        )
        self.poison_requests: Final = PoisonRequests()
        self.gate: Final = PauseGate()
        self._admission = AdmissionGate(self.selector.check, self._retry_window)
        self._encodes = EncodePool(registry, self.selector)
        self.answers: Final = RunningAttempts(self.selector.migration_target)
        registry.watch(self._admission.admit_waiting)
        metrics.watch_prefill_queue(self.prefill_queue)
        metrics.watch_admission(self._admission)
        metrics.watch_cluster(lambda: ClusterLoad.of(registry.sessions(), len(self._admission)))
        self._deliveries = DeliveryQueue(metrics.sent)
        self._running = 0
        self._sequences: defaultdict[RequestIdentity, dict[int, SequenceState]] = defaultdict(dict)
        """Running sequences, by request and index."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.wakes_workers = False
        """Whether a waiting sequence starts a worker when there is none."""
        self._draining = False
        self._workers_return = True

    @property
    def running(self) -> int:
        """Number of running sequences."""
        return self._running

    def lone_decode_s(self) -> float:
        """See `Selector.lone_decode_s`."""
        return self.selector.lone_decode_s()

    def statuses(self, request: RequestIdentity) -> dict[int, tuple[RequestStatus, router_pb2.Timings]]:
        """Stage and timings so far of each running sequence of a request, by index."""
        now = time.monotonic()
        sequences = self._sequences.get(request, {})
        return {i: (one.status(), one.waterfall.timings(now)) for i, one in sequences.items()}

    def release_session(self, tenant: str, key: str) -> None:
        """See `Dispatcher.release_session`."""
        release = worker_pb2.Command(release=worker_pb2.Release(tenant=tenant, key=key))
        for session in self._registry.sessions():
            session.send(release)

    async def pause(self, mode: PauseMode, abort_all: Callable[[], None]) -> None:
        """Refuse or hold back requests; returns when no worker is to compute any. `abort_all`: see
        `Generation.abort_all`."""
        self.gate.close(mode)
        if mode is PauseMode.ABORT:
            abort_all()
        if mode is PauseMode.KEEP:
            await self.answers.withdraw_all()
            self._admission.admit_waiting()  # those that wait for room wait at the gate
        else:
            await self._idle.wait()

    def resume(self) -> None:
        """End a pause."""
        self.gate.open()
        self._admission.admit_waiting()

    def serve(self, versions: Mapping[str, str]) -> None:
        """See `Selector.versions`."""
        self.selector.versions = versions

    @property
    def versions(self) -> Mapping[str, str]:
        return self.selector.versions

    def ready(self) -> bool:
        """Whether new sequences are accepted; without a worker, if one is started for them."""
        return not self._draining and (self.selector.is_ready() or self.wakes_workers)

    def workers(self, role: worker_pb2.Role) -> int:
        """See `Dispatcher.workers`."""
        return len(self._registry.ready(role))

    async def drain(self, timeout_s: float, *, workers_return: bool = True) -> int:
        """Refuse new sequences and wait for the running ones; returns how many are left.

        `workers_return`: whether a lost worker may come back. If not, a sequence fails as soon as no worker
        is ready for its next attempt, and `drain` waits only for those that live workers compute.
        """
        self._draining = True
        self._workers_return = workers_return
        await self._registry.reconsider()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self._running

    async def generate(
        self, work: worker_pb2.Work, stream: TokenStream, on_cut: OnCut = ignore_cut
    ) -> router_pb2.Timings:
        """See `Dispatcher.generate`."""
        if self._draining:
            raise ShuttingDown
        self.gate.check_new()
        waterfall = Waterfall(time.monotonic(), self.metrics)
        identity = CURRENT_REQUEST.get() or RequestIdentity()
        index, sequence_id = identity.next_sequence()
        sequence = SequenceState(
            work,
            waterfall,
            stream,
            identity=identity,
            id=sequence_id,
            trace=identity.trace,
            operation=identity.operation,
        )
        self._refuse_poison_requests(sequence)
        self._check_queue(sequence)
        self._enter()
        self._sequences[identity][index] = sequence
        stream.queue = self._deliveries
        outcome, is_cut = "abort", True
        try:
            finish = await stream.interrupt.wait(self._delivered(sequence))
            outcome, is_cut = _OUTCOMES.get(finish, "unknown"), False
        except TextEnded:
            outcome, is_cut = "stop", False
        except RouterError as error:
            outcome = error.code or "error"
            raise
        finally:
            stream.close()
            self._leave()
            self._forget(identity, index)
            ended = time.monotonic()
            if is_cut:
                on_cut(sequence.status(), waterfall.timings(ended))
            self.metrics.finished(sequence, outcome, ended)
            if outcome in _COMPLETE and not sequence.is_prefill_only:
                self.selector.completed(len(sequence.output))
            self._on_end(sequence, outcome, ended)
        return waterfall.timings(ended)

    async def _delivered(self, sequence: SequenceState) -> int:
        """Compute the sequence and wait until its reader has all tokens; returns the finish reason.

        A reader that is slow has until the deadline. Raises RouterError.
        """
        try:
            with self._encodes.encoding(sequence):
                finish = await self._with_retries(sequence)
        except RouterError:
            await sequence.stream.drained(sequence.deadline)
            raise
        if not await sequence.stream.drained(sequence.deadline):
            raise deadline_exceeded()
        return finish

    def _prefilled(
        self, sequence: SequenceState, grant: AdmissionGrant, tokens: int, prompt_tokens: int, cached: int
    ) -> None:
        """An attempt has its first token, `cached` of its `tokens` were in the worker's cache.

        `prompt_tokens`: 0 if an earlier attempt had one.
        """
        self.prefill_queue.served(tokens - cached if sequence.is_prefill_only else tokens)
        grant.computed()
        self.metrics.served(prompt_tokens)

    def _forget(self, identity: RequestIdentity, index: int) -> None:
        del self._sequences[identity][index]
        if not self._sequences[identity]:
            del self._sequences[identity]

    def _check_queue(self, sequence: SequenceState) -> None:
        """Raises Overloaded."""
        try:
            self.prefill_queue.check(len(sequence.prompt), sequence.seconds_left())
        except Overloaded as error:
            self.metrics.counted(error.code or "error")
            raise
        self.metrics.admitted(len(sequence.prompt))

    def attempt(self, sequence: SequenceState, pick: Pick) -> Attempt:
        """One attempt at a sequence on the workers that `pick` returns, for health probes."""
        route = self.selector.probe(pick)
        served = route.pick(worker_pb2.ROLE_DECODE).info.served
        sequence.use_weights(served.tag, served.version)
        return self._attempt(sequence, route)

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """See `Selector.able`."""
        return self.selector.able(role)

    async def migrate_from(self, worker_id: str, timeout_s: float) -> int:
        """See `RunningAttempts.migrate_from`."""
        return await self.answers.migrate_from(worker_id, timeout_s)

    def _attempt(self, sequence: SequenceState, route: Route) -> Attempt:
        if route.is_local:
            return MixedAttempt(sequence, route)
        return DisaggAttempt(sequence, route, self._config.handoff_timeout)

    async def _with_retries(self, sequence: SequenceState) -> int:
        """Compute the sequence, in as many attempts as it takes; returns the finish reason."""
        retries = RetryState(sequence.id, self._config.failover.max_attempts)
        place = partial(self._placed, sequence, retries)
        want = AdmissionRequest(sequence.num_tokens, place)
        if not self.selector.is_ready(sequence.adapter):
            with self.prefill_queue.waiting(want.tokens):
                await self._wait_for_workers(sequence)
        while True:
            if not await self.gate.passed(sequence.seconds_left()):
                raise deadline_exceeded()
            try:
                grant = self._admission.try_admit(want) or await self._wait_for_admission(sequence, want)
                with grant:
                    if self.gate.holds:
                        raise withdrawn()
                    _log.debug("request %s: %s", sequence.id, grant.route.why)
                    attempt = self._attempt(sequence, grant.route)
                    uncounted = 0 if sequence.output else len(sequence.prompt)
                    attempt.on_first_token = partial(self._prefilled, sequence, grant, want.tokens, uncounted)
                    sequence.status = attempt.status
                    with self.answers.running(attempt):
                        return await attempt.run()
            except AttemptFailed as failed:
                if not self.gate.holds:
                    self._record_failure(failed, retries, sequence)
            want = AdmissionRequest(sequence.num_tokens, place, is_retry=True)
            with self.prefill_queue.waiting(want.tokens):
                sequence.status = lambda: PAUSED
                pause_s = retries.pause_s * random.uniform(0.5, 1.5)
                await asyncio.sleep(min(pause_s, sequence.seconds_left()))
                await self._wait_for_workers(sequence)

    def _placed(self, sequence: SequenceState, retries: RetryState) -> Route | None:
        """See `AdmissionRequest.place`."""
        if self.gate.holds:
            raise withdrawn()
        tag = self.selector.version_for(sequence)
        sequence.use_weights(tag, self.selector.versions[tag])
        return self.selector.route(sequence, retries.avoid)

    def _record_failure(self, failed: AttemptFailed, retries: RetryState, sequence: SequenceState) -> None:
        """Raises RouterError if there is no further attempt."""
        self.metrics.retried(failed)
        verdict = retries.failed(failed, len(sequence.output))
        if verdict is None:
            _log.info("retrying request %s (%d attempts left): %s", sequence.label, retries.left, failed)
            return
        if retries.is_poison:
            self.poison_requests.add(sequence.id, sequence.keys, sequence.sampling)
            _log.error(
                "request %s (%d prompt tokens, %d output tokens) crashed %s: not retried",
                sequence.label,
                len(sequence.prompt),
                len(sequence.output),
                " and ".join(retries.ended),
            )
        else:
            _log.warning("request %s failed: %s", sequence.label, failed)
        raise verdict from failed

    def _refuse_poison_requests(self, sequence: SequenceState) -> None:
        """Raises Internal."""
        known = self.poison_requests.find(sequence.keys, sequence.sampling)
        if known is not None:
            _log.warning("request %s is identical to %s, which crashed workers: refused", sequence.id, known)
            error = crashed_workers(known)
            self.metrics.counted(error.code or "error")
            raise error

    async def _wait_for_admission(self, sequence: SequenceState, want: AdmissionRequest) -> AdmissionGrant:
        """Wait until the sequence may be sent to workers. Raises Overloaded, DeadlineExceeded."""
        timeout_s = min(self._config.max_queue_wait, sequence.seconds_left())
        sequence.status = lambda: HELD_BACK
        try:
            with self.prefill_queue.waiting(want.tokens):
                return await self._admission.wait(want, timeout_s)
        except TimeoutError:
            if not sequence.seconds_left():
                raise deadline_exceeded() from None
            raise overloaded("no decode worker had room in time", self.prefill_queue.wait_s()) from None

    def _retry_window(self) -> int:
        """Tokens of two steps of every prefill worker: one is computed while the next is queued."""
        ready = self.selector.prefill_workers()
        return sum(_RETRY_STEPS * (s.info.chunked_prefill_size or _RETRY_TOKENS) for s in ready)

    async def _wait_for_workers(self, sequence: SequenceState) -> None:
        """Wait for a ready worker, within the sequence's deadline and the failover timeout."""
        sequence.status = lambda: NO_WORKER
        timeout_s = min(self._config.failover.failover_timeout, sequence.seconds_left())
        await self._registry.wait_until(
            lambda: self.selector.is_ready(sequence.adapter) or not self._workers_return, timeout_s
        )
        if not self.selector.is_ready(sequence.adapter):
            if not sequence.seconds_left():
                raise deadline_exceeded()
            raise no_worker_ready(self._registry.complaints()).verdict

    def _enter(self) -> None:
        self._running += 1
        self._idle.clear()
        self.metrics.running.set(self._running)

    def _leave(self) -> None:
        self._running -= 1
        self.metrics.running.set(self._running)
        if not self._running:
            self._idle.set()


_OUTCOMES: Final = {
    int(sampling_pb2.FINISH_REASON_STOP): "stop",
    int(sampling_pb2.FINISH_REASON_LENGTH): "length",
    int(sampling_pb2.FINISH_REASON_ABORT): "abort",
}
_COMPLETE: Final = ("stop", "length")
"""Outcomes of answers that were not cut off."""
