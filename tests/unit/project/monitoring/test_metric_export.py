"""What Prometheus scrapes: shared labels, process figures, vLLM's names."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from common.metric_export import VLLM, MetricNames, MetricSource, exported


def source() -> CollectorRegistry:
    registry = CollectorRegistry()
    Histogram("baton_ttft_seconds", "TTFT", ("worker",), registry=registry, buckets=(1.0,)).labels(
        "w"
    ).observe(2)
    Counter("baton_requests", "Requests", ("outcome",), registry=registry).labels("stop").inc()
    Gauge("baton_worker_up", "Up", registry=registry).set(1)
    return registry


def test_every_sample_has_the_shared_labels_and_keeps_its_own() -> None:
    found = exported([MetricSource(source(), {"model_name": "m", "worker": "router"})])
    assert found.get_sample_value("baton_worker_up", {"model_name": "m", "worker": "router"}) == 1
    assert found.get_sample_value("baton_ttft_seconds_count", {"model_name": "m", "worker": "w"}) == 1


def test_cpu_memory_and_open_files_of_the_process_are_there() -> None:
    text = generate_latest(exported([MetricSource(source(), {"worker": "w"})])).decode()
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f'{name}{{worker="w"}}' in text


def test_vllms_names_replace_those_of_metrics_that_it_has() -> None:
    found = exported([MetricSource(source(), {"model_name": "m"})], MetricNames.VLLM)
    bucket = {"model_name": "m", "worker": "w", "le": "+Inf"}
    assert found.get_sample_value("vllm:time_to_first_token_seconds_bucket", bucket) == 1
    success = {"model_name": "m", "finished_reason": "stop"}
    assert found.get_sample_value("vllm:request_success_total", success) == 1
    assert found.get_sample_value("baton_worker_up", {"model_name": "m"}) == 1
    assert b"baton_ttft" not in generate_latest(found)


def test_every_name_of_vllm_that_is_served_is_in_the_documentation() -> None:
    document = (Path(__file__).resolve().parents[4] / "docs" / "monitoring.md").read_text()
    assert {name.name for name in VLLM.values()} <= set(
        re.findall(r"(vllm:\w+?)(?:_total)?(?=[`{])", document)
    )
