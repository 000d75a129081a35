"""Names of metrics, those that the product has and those that an expression uses."""

from __future__ import annotations

import re
from unittest.mock import Mock

from prometheus_client import CollectorRegistry

from engine.kernels.compilations import Compilations
from router.dispatch.metrics.router_metrics import RouterMetrics
from rpc.baton.v1 import worker_pb2
from worker.session.metrics import WorkerMetrics

CLUSTER_LABEL = "baton_cluster"
"""Given to targets by Prometheus' configuration."""


def exported_metrics() -> set[str]:
    """Names as Prometheus stores them, with _total, _bucket and so on; also of series without a sample."""
    return names_in(RouterMetrics().registry) | names_in(worker_registry())


def worker_registry() -> CollectorRegistry:
    worker = WorkerMetrics()
    with_tiers = worker_pb2.WorkerStats(tiers=worker_pb2.KVTiers())
    worker.watch(lambda: with_tiers, max_running=256, max_loras=4)
    worker.watch_grammars(Mock(kept_bytes=0, num_kept=0))
    worker.watch_experts(lambda: None)
    worker.watch_compilations(Compilations())
    worker.watch_threads(lambda: 1)
    return worker.registry


def names_in(registry: CollectorRegistry) -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix for family in registry.collect() for suffix in suffixes.get(family.type, ("",))
    }


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bbaton_\w+", expression)) - {CLUSTER_LABEL}
