"""Metrics that are collected at each scrape: the load of all workers, and inter-token latencies."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.dispatch.workers.session import WorkerSession
from rpc.adapter_metrics import requests_info
from rpc.baton.v1.worker_pb2 import AdapterUse


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Load of all workers that the router is connected to, as they last reported."""

    running: int = 0
    """Requests being computed, those of other routers included."""
    waiting: int = 0
    """Requests queued at the workers or held back by this router."""
    pages: int = 0
    free_pages: int = 0
    """Free or evictable."""
    page_size: int = 0
    """In tokens; 0: no worker is connected."""
    max_loras: int = 0
    """Adapters that a worker can compute with at a time."""
    adapters: Sequence[AdapterUse] = ()
    """Use of the adapters of all workers."""

    @classmethod
    def of(cls, sessions: Iterable[WorkerSession], held_back: int) -> ClusterLoad:
        sessions = list(sessions)
        loads = [session.load for session in sessions]
        return cls(
            running=sum(load.running for load in loads),
            waiting=held_back + sum(load.waiting for load in loads),
            pages=sum(session.info.num_pages for session in sessions),
            free_pages=sum(load.available_pages or 0 for load in loads),
            page_size=sessions[0].load.page_size if sessions else 0,
            max_loras=max((session.info.max_loras for session in sessions), default=0),
            adapters=[use for session in sessions for use in session.adapters.uses],
        )


class ClusterMetrics(Collector):
    """Reads `load` at every scrape."""

    def __init__(self) -> None:
        self.load: Callable[[], ClusterLoad] = ClusterLoad

    def collect(self) -> Iterable[Metric]:
        load = self.load()
        used = 1 - load.free_pages / load.pages if load.pages else 0.0
        waiting = "Requests queued at all workers, or held back by the router"
        usage = "Share of all KV pools that requests hold: neither free nor evictable"
        running = "Requests being computed on all workers"
        yield GaugeMetricFamily("baton_cluster_running_requests", running, load.running)
        yield GaugeMetricFamily("baton_cluster_waiting_requests", waiting, load.waiting)
        yield GaugeMetricFamily("baton_cluster_token_usage", usage, used)
        info = GaugeMetricFamily(
            "baton_cache_config_info",
            "1; the KV pools of all workers together are in the labels",
            labels=("page_size", "num_pages"),
        )
        if load.page_size:
            info.add_metric((str(load.page_size), str(load.pages)), 1)
        yield info
        yield requests_info("baton_cluster_lora_requests_info", load.adapters, load.max_loras)


_MOST_PENDING: Final = 32
"""Different gaps before all are observed."""


class Gaps(Collector):
    """A Prometheus histogram of inter-token latencies, at the price of a dictionary's entry for each token.

    All tokens of a worker's step arrive together, so most of them have the same gap to the token before.
    Equal gaps are counted first, and observed together.
    """

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        observe: Callable[[float, int], None],
    ) -> None:
        """`bounds`: upper bounds of the buckets in seconds. `observe` gets the gaps and their counts, too."""
        self._pending: Counter[float] = Counter()
        self._name, self._text = name, text
        self._bounds = (*bounds, math.inf)
        self._observe = observe
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, seconds: float, count: int) -> None:
        self._pending[seconds] += count
        if len(self._pending) > _MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        for seconds, count in self._pending.items():
            self._counts[bisect_left(self._bounds, seconds)] += count
            self._sum += seconds * count
            self._observe(seconds, count)
        self._pending.clear()

    def collect(self) -> Iterable[Metric]:
        self._settle()
        names = [*(str(bound) for bound in self._bounds[:-1]), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return [HistogramMetricFamily(self._name, self._text, buckets, self._sum)]
