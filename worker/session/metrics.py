"""A worker's Prometheus metrics, in base units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core.events import StepOutput
from engine.core.media import MediaUse
from engine.grammar.compiler import GrammarCompiler
from engine.kernels.compilations import CompilationPhase, Compilations
from engine.loop.pauses.causes import Cause
from engine.loop.pauses.slow_steps import SlowStep
from rpc.adapter_metrics import adapter_metrics
from rpc.baton.v1 import worker_pb2

_STEP_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_WAIT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BUCKETS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class RequestOutcome(Enum):
    """How a request ended on a worker."""

    FINISHED = "finished"
    HANDED_OFF = "handed_over"
    ABORTED = "aborted"
    FAILED = "failed"
    REFUSED = "refused"


class WorkerMetrics:
    """Events are counted as they happen; state is collected at each scrape (`watch`).

    Role, mode and name of the worker are labels that all samples get when they are exported.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests = self._counter("baton_worker_requests", "Requests that ended on this worker", "outcome")
        self._requests = {outcome: requests.labels(outcome.value) for outcome in RequestOutcome}
        self.ready = self._gauge("baton_worker_ready", "1 while the engine runs")
        self._step_seconds = self._histogram(
            "baton_step_seconds", "Duration of an engine step", _STEP_BUCKETS
        )
        self._step_prompt_tokens = self._histogram(
            "baton_step_prompt_tokens", "Prompt tokens of a step with prompts", _TOKEN_BUCKETS
        )
        self._step_decodes = self._histogram(
            "baton_step_decodes", "Requests that decode in a step", _BATCH_BUCKETS
        )
        slow = self._counter(
            "baton_slow_steps", "Steps that took more than three times what was expected, or a pause", "cause"
        )
        slow_seconds = self._counter("baton_slow_step_seconds", "Duration of slow steps, by cause", "cause")
        self._slow = {cause: (slow.labels(cause.value), slow_seconds.labels(cause.value)) for cause in Cause}
        self.queue_seconds = self._histogram(
            "baton_worker_queue_seconds", "Wait from arrival at the worker to the first chunk", _WAIT_BUCKETS
        )
        self.reserve_seconds = self._histogram(
            "baton_reserve_seconds", "Wait of a handoff for free pages", _WAIT_BUCKETS
        )
        self.transfer_seconds = self._histogram(
            "baton_transfer_seconds", "From the reservation to the last page", _WAIT_BUCKETS
        )
        self.transfer_exposed_seconds = self._histogram(
            "baton_transfer_exposed_seconds",
            "From the sender's last computed token to the last page: transfer time not hidden by prefill",
            _WAIT_BUCKETS,
        )
        self.transfer_bytes = self._counter("baton_transfer_bytes", "KV bytes sent to other workers")
        self.pulled_bytes = self._counter("baton_kv_pulled_bytes", "KV bytes from other workers' caches")
        self._pulls = self._counter(
            "baton_kv_pulls", "Prefixes asked for from other workers' caches, by how that ended", "outcome"
        )
        self.transfer_failures = self._counter("baton_transfer_failures", "Handoffs that failed")
        self.encode_seconds = self._histogram(
            "baton_encode_seconds", "Time in which the vision model encodes one image", _STEP_BUCKETS
        )
        for_others = self._counter(
            "baton_images_for_others",
            "Images that routers had encoded for other workers",
            "outcome",
        )
        self._for_others = {outcome: for_others.labels(outcome) for outcome in ("encoded", "hit")}
        self._rows = self._counter(
            "baton_image_rows",
            "Images whose rows were to come from an encode worker: fetched, or why they were encoded here",
            "outcome",
        )
        self.rows_bytes = self._counter("baton_image_rows_bytes", "Rows of images from encode workers")
        self.adapter_load_seconds = self._histogram(
            "baton_adapter_load_seconds", "Time to read an adapter and check it", _WAIT_BUCKETS
        )

    def on_step(self, output: StepOutput, seconds: float) -> None:
        self._step_seconds.observe(seconds)
        if output.prompt_tokens:
            self._step_prompt_tokens.observe(output.prompt_tokens)
        if decodes := output.num_tokens - output.prompt_tokens:
            self._step_decodes.observe(decodes)

    def slow(self, step: SlowStep) -> None:
        steps, seconds = self._slow[step.cause]
        steps.inc()
        seconds.inc(step.seconds)

    def pulled(self, outcome: str) -> None:
        """A prefix was asked for from another worker's cache."""
        self._pulls.labels(outcome).inc()

    def encoded_for_others(self, use: MediaUse) -> None:
        """An image was looked up for another worker, and perhaps encoded."""
        for _, encoding in use.encoded:
            self.encode_seconds.observe(encoding.seconds)
        self._for_others["hit" if use.hits else "encoded"].inc()

    def rows_fetched(self, outcome: str, num_bytes: int = 0) -> None:
        """Rows of an image came from another worker, or the image is encoded here: `outcome` says why."""
        self._rows.labels(outcome).inc()
        self.rows_bytes.inc(num_bytes)

    def ended(self, outcome: RequestOutcome) -> None:
        self._requests[outcome].inc()

    def watch(
        self, stats: Callable[[], worker_pb2.WorkerStats | None], *, max_running: int, max_loras: int
    ) -> None:
        """Export the result of `stats` at every scrape, or nothing if it is None (the engine did not answer).

        `max_running`: the limit of running requests. `max_loras`: adapters that a step can compute with.
        """
        self.registry.register(_StatsCollector(stats, max_running, max_loras))

    def watch_grammars(self, grammars: GrammarCompiler) -> None:
        """Export the size of the grammar cache."""
        self._gauge(
            "baton_grammar_cache_bytes", "Estimated memory of the compiled grammars that are kept"
        ).set_function(lambda: grammars.kept_bytes)
        self._gauge("baton_grammar_cache_entries", "Compiled grammars that are kept").set_function(
            lambda: grammars.num_kept
        )

    def watch_compilations(self, compilations: Compilations) -> None:
        """Export how many kernels this process compiled, and loaded from the machine's cache."""
        self.registry.register(_CompilationsCollector(compilations))

    def watch_experts(self, imbalance: Callable[[], float | None]) -> None:
        """Export the result of `imbalance`; 0 while it is None, as in models without experts."""
        self._gauge(
            "baton_expert_imbalance",
            "Tokens of the busiest expert of a layer relative to the mean, averaged over layers",
        ).set_function(lambda: imbalance() or 0.0)

    def watch_threads(self, threads: Callable[[], int]) -> None:
        """Export the number of threads that compute a step on a CPU."""
        self._gauge(
            "baton_compute_threads", "Threads that compute a step on a CPU; fewer while others use its cores"
        ).set_function(threads)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


class _CompilationsCollector(Collector):
    def __init__(self, compilations: Compilations) -> None:
        self._compilations = compilations

    def collect(self) -> Iterable[Metric]:
        for name, text, counts in (
            ("baton_kernels_compiled", "Kernels compiled, by when", self._compilations.compiled),
            (
                "baton_kernels_loaded",
                "Kernels loaded that were compiled by an earlier process",
                self._compilations.loaded,
            ),
        ):
            values = {phase.value: counts[phase] for phase in CompilationPhase}
            yield _labelled(CounterMetricFamily, name, text, "when", values)


class _StatsCollector(Collector):
    def __init__(
        self, stats: Callable[[], worker_pb2.WorkerStats | None], max_running: int, max_loras: int
    ) -> None:
        self._stats = stats
        self._max_running = max_running
        self._max_loras = max_loras

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registration does not wait for an engine that has not started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        if stats is None:
            return
        yield _by_state("baton_kv_pages", "Pages of the KV pool by state", stats.pages)
        yield _group_pages(stats.groups)
        text = "Slots for recurrent states by state; cached are checkpoints of prefixes"
        yield _by_state("baton_state_slots", text, stats.state_slots)
        if stats.HasField("tiers"):
            yield from _tier_metrics(stats.tiers)
        gauges = (
            ("baton_waiting_requests", "Requests queued at the worker", stats.load.waiting),
            ("baton_running_requests", "Requests being computed", stats.load.running),
            ("baton_max_running_requests", "Limit of baton_running_requests", self._max_running),
            ("baton_kv_retained_blocks", "Blocks of KV that clients have retained", stats.retained_blocks),
            ("baton_waiting_tokens", "Prompt tokens not computed yet", stats.load.waiting_tokens),
            (
                "baton_token_usage",
                "Share of the KV pool that requests hold: neither free nor evictable",
                1 - stats.load.free_pages / max(stats.load.total_pages, 1),
            ),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value)
        yield from adapter_metrics(stats.load.adapters, self._max_loras)
        counters = (
            ("baton_steps", "Engine steps", stats.steps),
            (
                "baton_preemptions",
                "Preemptions: requests whose pages were freed and that are recomputed",
                stats.preemptions,
            ),
            ("baton_computed_prompt_tokens", "Prompt tokens computed", stats.prompt_tokens),
            ("baton_generated_tokens", "Tokens sampled", stats.generated_tokens),
            (
                "baton_cache_queried_tokens",
                "Prompt tokens looked up in the prefix cache",
                stats.prompt_tokens + stats.cache_hit_tokens,
            ),
            ("baton_cache_hit_tokens", "Prompt tokens found in the prefix cache", stats.cache_hit_tokens),
            ("baton_drafts", "Drafts verified", stats.drafts),
            ("baton_drafted_tokens", "Tokens drafted", stats.drafted_tokens),
            ("baton_accepted_tokens", "Drafted tokens that were right", stats.accepted_tokens),
            ("baton_images_encoded", "Images that the vision model encoded", stats.images_encoded),
            (
                "baton_image_cache_queries",
                "Images whose rows were looked up, each once for a request",
                stats.image_cache_queries,
            ),
            (
                "baton_image_cache_hits",
                "Images whose rows were kept since an earlier request",
                stats.image_cache_hits,
            ),
            ("baton_unexpected_messages", "Late or duplicate handoff messages", stats.unexpected_messages),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value)
        text = "Drafted tokens that were right, by position in the draft, from 0"
        at = {str(position): value for position, value in enumerate(stats.accepted_at)}
        yield _labelled(CounterMetricFamily, "baton_accepted_tokens_at", text, "position", at)


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """`values`: by the value of the only label."""
    metric = kind(name, text, labels=[label])
    for of_label, value in values.items():
        metric.add_metric([of_label], value)
    return metric


def _by_state(name: str, text: str, counts: worker_pb2.PageCounts) -> Metric:
    states = ("free", "held", "cached", "in_flight", "quarantined", "leaving")
    return _labelled(
        GaugeMetricFamily, name, text, "state", {state: getattr(counts, state) for state in states}
    )


def _group_pages(groups: Iterable[worker_pb2.GroupPages]) -> Metric:
    gauge = GaugeMetricFamily(
        "baton_kv_group_pages",
        "Held and cached pages of the KV pool by kind of layers: full, latent, or by window",
        labels=["kind", "state"],
    )
    for group in groups:
        gauge.add_metric([group.kind, "held"], group.held)
        gauge.add_metric([group.kind, "cached"], group.cached)
    return gauge


def _tier_metrics(tiers: worker_pb2.KVTiers) -> Iterable[Metric]:
    for kind, name, text, field in (
        (GaugeMetricFamily, "baton_kv_tier_bytes", "KV on a tier", "pages"),
        (GaugeMetricFamily, "baton_kv_tier_capacity_bytes", "Size of a tier", "capacity"),
        (CounterMetricFamily, "baton_kv_demoted_bytes", "KV copied down to a tier", "demoted"),
        (
            CounterMetricFamily,
            "baton_kv_promoted_bytes",
            "KV copied from a tier into the pool, and verified",
            "promoted",
        ),
    ):
        pages = {tier.name: getattr(tier, field) * tiers.page_bytes for tier in tiers.tiers}
        yield _labelled(kind, name, text, "tier", pages)
    text = "Pages evicted before there was a copy on a tier"
    yield CounterMetricFamily("baton_kv_dropped_pages", text, tiers.dropped)
    text = "Copies that failed or did not verify"
    yield _labelled(CounterMetricFamily, "baton_kv_tier_faults", text, "reason", tiers.faults)
