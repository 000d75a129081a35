"""Metrics of adapters, of a worker and of a router over all its workers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from rpc.baton.v1.worker_pb2 import AdapterUse


def requests_info(name: str, uses: Iterable[AdapterUse], max_loras: int) -> Metric:
    """Names of the adapters of running and of waiting requests as labels, and the time as value, as vLLM has
    them for gateways. Without a sample if there are no adapters."""
    info = GaugeMetricFamily(
        name,
        "Adapters of running and of waiting requests; the value is the time",
        labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    )
    uses = list(uses)
    if max_loras:
        running = sorted({use.name for use in uses if use.running})
        waiting = sorted({use.name for use in uses if use.waiting})
        info.add_metric((str(max_loras), ",".join(running), ",".join(waiting)), time.time())
    return info


def adapter_metrics(uses: Sequence[AdapterUse], max_loras: int) -> Iterable[Metric]:
    """Metrics of one worker."""
    yield requests_info("baton_lora_requests_info", uses, max_loras)
    used = sum(use.on_device for use in uses)
    host_bytes = sum(use.host_bytes for use in uses)
    yield GaugeMetricFamily("baton_adapter_slots_used", "Adapters that a step can compute with", used)
    yield GaugeMetricFamily("baton_adapter_slots", "Limit of baton_adapter_slots_used", max_loras)
    yield GaugeMetricFamily("baton_adapter_host_bytes", "Host memory of adapters", host_bytes)
    loaded = GaugeMetricFamily(
        "baton_adapter_loaded",
        "1 for each loaded adapter; pinned: requests use it",
        labels=("adapter_name", "level", "pinned", "rank"),
    )
    for use in uses:
        level, pinned = "gpu" if use.on_device else "cpu", bool(use.running or use.waiting)
        loaded.add_metric((use.name, level, str(pinned).lower(), str(use.rank)), 1)
    yield loaded
