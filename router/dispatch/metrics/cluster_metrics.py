"""The load of all workers together, as a gateway in front of the router reads it: queue, running, KV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.workers.session import WorkerSession

__all__ = ["ClusterLoad", "ClusterMetrics"]


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Of all workers that the router is connected to, as they last reported."""

    running: int = 0
    """Requests being computed, those of other routers included."""
    waiting: int = 0
    """Requests queued at the workers or held back by this router."""
    pages: int = 0
    free_pages: int = 0
    """Free or evictable."""
    page_size: int = 0
    """In tokens; 0: no worker is connected."""

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
        )


class ClusterMetrics(Collector):
    """Reads `load` at every scrape."""

    def __init__(self, names: Sequence[str], values: Sequence[str]) -> None:
        """`names` and `values`: of the labels that every sample has."""
        self.load: Callable[[], ClusterLoad] = ClusterLoad
        self._names: Final = names
        self._values: Final = values

    def collect(self) -> Iterable[Metric]:
        load = self.load()
        used = 1 - load.free_pages / load.pages if load.pages else 0.0
        for name, text, value in (
            ("baton_cluster_running_requests", "Requests being computed on all workers", load.running),
            (
                "baton_cluster_waiting_requests",
                "Requests queued at all workers, or held back by the router",
                load.waiting,
            ),
            (
                "baton_cluster_token_usage",
                "Share of all KV pools that requests hold: neither free nor evictable",
                used,
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=self._names)
            gauge.add_metric(self._values, value)
            yield gauge
        info = GaugeMetricFamily(
            "baton_cache_config_info",
            "1; the KV pools of all workers together are in the labels",
            labels=(*self._names, "page_size", "num_pages"),
        )
        if load.page_size:
            info.add_metric((*self._values, str(load.page_size), str(load.pages)), 1)
        yield info
