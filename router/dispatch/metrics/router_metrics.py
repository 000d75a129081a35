"""The router's Prometheus metrics: latencies in seconds, lengths in tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from router.dispatch.admission.admission_queue import Admission
from router.dispatch.admission.prefill_queue import PrefillQueue
from router.dispatch.failures import AttemptFailed
from router.dispatch.metrics.collectors import ClusterLoad, ClusterMetrics, Gaps
from router.dispatch.metrics.recent import EndedRequest, RateWindow, Recent
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Observer
from rpc.baton.v1 import router_pb2

_STAGES_TO_FIRST: Final = ("queue", "prefill")
_STAGES_TO_SECOND: Final = ("reserve", "transfer", "first_decode")
_STAGES: Final = (*_STAGES_TO_FIRST, *_STAGES_TO_SECOND)
_WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_GAPS: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_LENGTHS: Final = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_RATES: Final = (1e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 2e10, 5e10, 1e11, 2e11, 4e11)
_LAGS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class RouterMetrics(Observer):
    """`registry` is what GET /metrics renders, with role, mode and worker as labels of all samples."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.recent: Final = Recent()

        self.running = self._gauge("baton_router_running_requests", "Sequences that the router is serving")
        self._queued_tokens = self._gauge(
            "baton_router_queued_tokens", "Prompt tokens of sequences without a first token"
        )
        self._held_back = self._gauge(
            "baton_router_held_back_requests", "Sequences that wait in the router for room on a decode worker"
        )
        self._predicted_wait = self._gauge(
            "baton_router_predicted_wait_seconds", "Estimated queue time of a new prompt"
        )
        self._requests = self._counter("baton_requests", "Sequences, by outcome", "outcome")
        self._retries = self._counter(
            "baton_request_retries", "Failed attempts, by the worker that failed", "failed_worker"
        )
        self._prompt_tokens = self._counter("baton_prompt_tokens", "Prompt tokens of admitted sequences")
        self._output_tokens = self._counter("baton_output_tokens", "Tokens sent to clients")

        self._first_token = self._histogram("baton_ttft_seconds", "Arrival to first token", _WAITS)
        self._no_first_token = self._histogram(
            "baton_no_first_token_seconds",
            "Arrival to end, of admitted sequences that ended without a token, by outcome",
            _WAITS,
            "outcome",
        )
        self._gaps = Gaps(
            "baton_itl_seconds",
            "Inter-token latency",
            _GAPS,
            self.recent.gaps,
        )
        self.registry.register(self._gaps)
        self._end_to_end = self._histogram("baton_e2e_seconds", "Arrival to last token", _WAITS)
        self._per_token = self._histogram(
            "baton_tpot_seconds", "Mean inter-token latency of a finished sequence", _GAPS
        )
        self._prompt_length = self._histogram(
            "baton_request_prompt_tokens", "Prompt length of finished sequences", _LENGTHS
        )
        self._output_length = self._histogram(
            "baton_request_output_tokens", "Output length of finished sequences", _LENGTHS
        )
        self._queue_time = self._histogram(
            "baton_request_queue_seconds", "Arrival to first chunk, of finished sequences", _WAITS
        )
        self._prefill_time = self._histogram(
            "baton_request_prefill_seconds",
            "First chunk to first token, of finished sequences",
            _WAITS,
        )
        self._decode_time = self._histogram(
            "baton_request_decode_seconds", "First to last token, of finished sequences", _WAITS
        )
        self._handoff_rate = self._histogram(
            "baton_handoff_bytes_per_second",
            "KV bytes of a handoff over the time with writes in flight",
            _RATES,
        )
        self._moves = self._counter(
            "baton_moved_answers", "Running answers moved to another worker", "reason"
        )
        self._link_bytes = self._counter(
            "baton_link_bytes", "KV bytes transferred from one worker to another", "prefill", "decode"
        )
        self.loop_lag = self._histogram(
            "baton_router_loop_lag_seconds", "Delay of a timer in the router's event loop", _LAGS
        )
        for name, text, window in (
            ("prompt", "Prompt tokens served", self.recent.prompt_tokens),
            ("output", "Tokens sent to clients", self.recent.output_tokens),
        ):
            self._gauge(
                f"baton_{name}_tokens_per_second", f"{text} per second, over the last 5 s"
            ).set_function(partial(self._rate, window))
        stages = self._histogram(
            "baton_stage_seconds",
            "Stages from arrival to second token; of reserve and transfer, the exposed part",
            _WAITS,
            "stage",
        )
        self._stages = {stage: stages.labels(stage) for stage in _STAGES}

        self._cluster = ClusterMetrics()
        self.registry.register(self._cluster)

        self._workers: dict[str, tuple[str, bool]] = {}
        """Role and state by worker."""
        self._worker_up = self._gauge(
            "baton_worker_up", "1 while the router can use the worker", "role", "worker"
        )
        self._desired_workers = self._gauge(
            "baton_desired_workers", "Workers of the role that the cluster is to have", "role"
        )
        self._ready_workers = self._gauge(
            "baton_ready_workers", "Of those, the ones that the router can use", "role"
        )
        self._incarnations = self._counter(
            "baton_worker_connects", "Connections to the worker", "role", "worker"
        )

    def watch_prefill_queue(self, queue: PrefillQueue) -> None:
        """Read the queue at every scrape."""
        self._queued_tokens.set_function(lambda: queue.tokens)
        self._predicted_wait.set_function(queue.wait_s)

    def watch_admission(self, admission: Admission) -> None:
        """Read the number of waiting sequences at every scrape."""
        self._held_back.set_function(lambda: len(admission))

    def watch_cluster(self, load: Callable[[], ClusterLoad]) -> None:
        """Read the load of all workers at every scrape."""
        self._cluster.load = load

    def admitted(self, prompt_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)

    def served(self, prompt_tokens: int) -> None:
        """A prompt's first token was produced."""
        self.recent.served(prompt_tokens)

    def sent(self, tokens: int) -> None:
        """Tokens were sent to a client."""
        self._output_tokens.inc(tokens)
        self.recent.sent(tokens)

    def finished(self, sequence: SequenceState, outcome: str, at: float) -> None:
        """Record the end of an admitted sequence; to be called once. `at`: on the waterfall's clock."""
        waterfall = sequence.waterfall
        self.counted(outcome)
        self.recent.ended(
            EndedRequest(
                id=sequence.id,
                outcome=outcome,
                ended=at,
                prompt_tokens=len(sequence.prompt),
                output_tokens=len(sequence.output),
                timings=waterfall.timings(at),
            )
        )
        passed = at - waterfall.arrival
        if waterfall.first_token is None:
            self._no_first_token.labels(outcome).observe(passed)
        else:
            self._end_to_end.observe(passed)
            self._observe_ended(sequence, at)

    def _observe_ended(self, sequence: SequenceState, at: float) -> None:
        timings, tokens = sequence.waterfall.timings(at), len(sequence.output)
        decode_s = timings.e2e_s - timings.ttft_s
        self._prompt_length.observe(len(sequence.prompt))
        self._output_length.observe(tokens)
        self._queue_time.observe(timings.queue_s)
        self._prefill_time.observe(timings.prefill_s)
        self._decode_time.observe(decode_s)
        if tokens > 1:
            self._per_token.observe(decode_s / (tokens - 1))

    def _rate(self, window: RateWindow) -> float:
        return window.rate(time.monotonic())

    def counted(self, outcome: str) -> None:
        """Count a sequence that was not admitted; for others see `finished`."""
        self._requests.labels(outcome).inc()

    def on_first_token(self, timings: router_pb2.Timings) -> None:
        self._first_token.observe(timings.ttft_s)
        self.recent.first_token(timings.ttft_s)
        self._observe(timings, _STAGES_TO_FIRST)

    def on_second_token(self, timings: router_pb2.Timings) -> None:
        self._observe(timings, _STAGES_TO_SECOND)

    def on_gap(self, seconds: float, count: int) -> None:
        self._gaps.add(seconds, count)

    def on_handed_off(self, prefill_worker: str, decode_worker: str, size: int, seconds: float) -> None:
        self.recent.handed_off(prefill_worker, decode_worker, size)
        self._link_bytes.labels(prefill_worker, decode_worker).inc(size)
        if seconds > 0:
            self._handoff_rate.observe(size / seconds)

    def on_moved(self, reason: str) -> None:
        self._moves.labels(reason).inc()

    def retried(self, failed: AttemptFailed) -> None:
        self._retries.labels(failed.worker_id or "none").inc()

    def worker_changed(self, worker_id: str, role: str, *, up: bool) -> None:
        """A worker connects, is lost, or gets another role."""
        before, was_up = self._workers.get(worker_id, (role, False))
        self._workers[worker_id] = role, up
        if before != role:
            self._worker_up.remove(before, worker_id)
        self._worker_up.labels(role, worker_id).set(up)
        if up and not was_up:
            self._incarnations.labels(role, worker_id).inc()

    def worker_gone(self, worker_id: str) -> None:
        """A worker has left the cluster for good."""
        if (known := self._workers.pop(worker_id, None)) is not None:
            self._worker_up.remove(known[0], worker_id)

    def watch_workers(self, role: str, desired: Callable[[], int], ready: Callable[[], int]) -> None:
        """Read the numbers of workers of a role at every scrape."""
        self._desired_workers.labels(role).set_function(desired)
        self._ready_workers.labels(role).set_function(ready)

    def _observe(self, timings: router_pb2.Timings, stages: tuple[str, ...]) -> None:
        for stage in stages:
            self._stages[stage].observe(getattr(timings, f"{stage}_s"))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
