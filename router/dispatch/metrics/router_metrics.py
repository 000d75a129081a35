"""The router's Prometheus metrics: latencies in seconds, lengths in tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from router.dispatch.admission.admission_queue import AdmissionGate
from router.dispatch.admission.prefill_queue import PrefillQueue
from router.dispatch.failures import AttemptFailed
from router.dispatch.metrics.collectors import ClusterLoad, ClusterMetrics, Gaps
from router.dispatch.metrics.ended_sequences import EndedSequences
from router.dispatch.metrics.instruments import GAPS, WAITS, Instruments
from router.dispatch.metrics.known_workers import KnownWorkers
from router.dispatch.metrics.recent import EndedRequest, RateWindow, Recent
from router.dispatch.pauses import CAUSES, UNKNOWN, StreamPause
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Observer
from rpc.baton.v1 import router_pb2

_STAGES_TO_FIRST: Final = ("queue", "prefill")
_STAGES_TO_SECOND: Final = ("reserve", "transfer", "first_decode")
_STAGES: Final = (*_STAGES_TO_FIRST, *_STAGES_TO_SECOND)
_RATES: Final = (1e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 2e10, 5e10, 1e11, 2e11, 4e11)
_OPERATIONS: Final = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LAGS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class RouterMetrics(Observer):
    """`registry` is what GET /metrics renders, with role, mode and worker as labels of all samples."""

    def __init__(self) -> None:
        new = Instruments()
        self.registry: Final = new.registry
        self.recent: Final = Recent()
        self.workers: Final = KnownWorkers(new)
        self._ended: Final = EndedSequences(new)

        self.running = new.gauge("baton_router_running_requests", "Sequences that the router is serving")
        self._queued_tokens = new.gauge(
            "baton_router_queued_tokens", "Prompt tokens of sequences without a first token"
        )
        self._held_back = new.gauge(
            "baton_router_held_back_requests", "Sequences that wait in the router for room on a decode worker"
        )
        self._predicted_wait = new.gauge(
            "baton_router_predicted_wait_seconds", "Estimated queue time of a new prompt"
        )
        self._requests = new.counter("baton_requests", "Sequences, by outcome", "outcome")
        self._retries = new.counter(
            "baton_request_retries", "Failed attempts, by the worker that failed", "failed_worker"
        )
        self._prompt_tokens = new.counter("baton_prompt_tokens", "Prompt tokens of admitted sequences")
        self._output_tokens = new.counter("baton_output_tokens", "Tokens sent to clients")
        for name, text, window in (
            ("prompt", "Prompt tokens served", self.recent.prompt_tokens),
            ("output", "Tokens sent to clients", self.recent.output_tokens),
        ):
            rate = new.gauge(f"baton_{name}_tokens_per_second", f"{text} per second, over the last 5 s")
            rate.set_function(partial(self._rate, window))

        self._read = new.histogram("baton_read_seconds", "Arrival to the numbers of a read", WAITS)
        self._first_token = new.histogram("baton_ttft_seconds", "Arrival to first token", WAITS)
        self._gaps = Gaps("baton_itl_seconds", "Inter-token latency", GAPS, self.recent.gaps)
        self.registry.register(self._gaps)
        stages = new.histogram(
            "baton_stage_seconds",
            "Stages from arrival to second token; of reserve and transfer, the exposed part",
            WAITS,
            "stage",
        )
        self._stages = {stage: stages.labels(stage) for stage in _STAGES}
        self._handoff_rate = new.histogram(
            "baton_handoff_bytes_per_second",
            "KV bytes of a handoff over the time with writes in flight",
            _RATES,
        )
        self._link_bytes = new.counter(
            "baton_link_bytes", "KV bytes transferred from one worker to another", "prefill", "decode"
        )
        self._moves = new.counter("baton_moved_answers", "Running answers moved to another worker", "reason")
        pauses = new.counter(
            "baton_pauses", "Gaps between tokens of an answer that readers notice, by cause", "cause"
        )
        pause_seconds = new.counter("baton_pause_seconds", "Duration of these gaps", "cause")
        self._pauses = {cause: (pauses.labels(cause), pause_seconds.labels(cause)) for cause in CAUSES}
        self.loop_lag = new.histogram(
            "baton_router_loop_lag_seconds", "Delay of a timer in the router's event loop", _LAGS
        )
        durations = new.histogram(
            "baton_router_weight_operation_seconds",
            "Updates of the weights, pauses and their ends, by one call to this router",
            _OPERATIONS,
            "operation",
        )
        in_flight = new.gauge(
            "baton_router_weight_operations_in_flight", "Of these, the ones that go on", "operation"
        )
        self._weights = {
            operation: (durations.labels(operation), in_flight.labels(operation))
            for operation in ("update", "pause", "resume")
        }
        self._cluster = ClusterMetrics()
        self.registry.register(self._cluster)

    def watch_prefill_queue(self, queue: PrefillQueue) -> None:
        """Read the queue at every scrape."""
        self._queued_tokens.set_function(lambda: queue.tokens)
        self._predicted_wait.set_function(queue.wait_s)

    def watch_admission(self, admission: AdmissionGate) -> None:
        """Read the number of waiting sequences at every scrape."""
        self._held_back.set_function(lambda: len(admission))

    def watch_cluster(self, load: Callable[[], ClusterLoad]) -> None:
        """Read the load of all workers at every scrape."""
        self._cluster.load = load

    @contextmanager
    def weight_operation(self, operation: str) -> Iterator[None]:
        """Record an `update`, a `pause` or a `resume`, whatever becomes of it."""
        (duration, in_flight), began = self._weights[operation], time.monotonic()
        with in_flight.track_inprogress():
            try:
                yield
            finally:
                duration.observe(time.monotonic() - began)

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
        self.counted(outcome)
        self.recent.ended(
            EndedRequest(
                id=sequence.id,
                outcome=outcome,
                ended=at,
                prompt_tokens=len(sequence.prompt),
                output_tokens=len(sequence.output),
                timings=sequence.waterfall.timings(at),
            )
        )
        self._ended.observe(sequence, outcome, at)

    def _rate(self, window: RateWindow) -> float:
        return window.rate(time.monotonic())

    def counted(self, outcome: str) -> None:
        """Count a sequence that was not admitted; for others see `finished`."""
        self._requests.labels(outcome).inc()

    def on_first_token(self, timings: router_pb2.Timings) -> None:
        self._first_token.observe(timings.ttft_s)
        self.recent.first_token(timings.ttft_s)
        self._observe(timings, _STAGES_TO_FIRST)

    def on_read(self, timings: router_pb2.Timings) -> None:
        self._read.observe(timings.read_s)
        self.recent.read.add(timings.read_s, time.monotonic())

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

    def on_pause(self, pause: StreamPause) -> None:
        pauses, seconds = self._pauses[pause.cause if pause.cause in self._pauses else UNKNOWN]
        pauses.inc()
        seconds.inc(pause.seconds)
        self.recent.paused(pause)

    def retried(self, failed: AttemptFailed) -> None:
        self._retries.labels(failed.worker_id or "none").inc()

    def _observe(self, timings: router_pb2.Timings, stages: tuple[str, ...]) -> None:
        for stage in stages:
            self._stages[stage].observe(getattr(timings, f"{stage}_s"))
