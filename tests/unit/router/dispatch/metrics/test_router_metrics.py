"""Metrics of a finished sequence, for Prometheus and for the live page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from common.kv_groups import RequestPages
from common.metric_export import MetricNames, MetricSource, exported
from router.dispatch.metrics.collectors import ClusterLoad
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import sampling_pb2, worker_pb2


def ended(metrics: RouterMetrics) -> SequenceState:
    """5 tokens from a prompt of 3: the first after 1 s, the others in 2 s; KV in two pushes that overlap."""
    marks = Waterfall(arrival=10.0, observer=metrics)
    marks.attempt(10.0)
    marks.placed("prefill-0", "decode-0", "disagg")
    marks.tokens(1, 11.0)
    pushes = [worker_pb2.Span(begin_s=0.0, end_s=0.2), worker_pb2.Span(begin_s=0.1, end_s=0.4)]
    marks.on_handed_off(worker_pb2.HandedOff(bytes=8_000_000, pushes=pushes))
    for at in (11.5, 12.0, 12.5, 13.0):
        marks.tokens(1, at)
    return SequenceState(
        worker_pb2.Work(prompt=[1, 2, 3], sampling=sampling_pb2.SamplingParams()),
        marks,
        id="r",
        output=[4, 5, 6, 7, 8],
    )


def test_lengths_and_times_are_observed_when_a_sequence_ends() -> None:
    metrics = RouterMetrics()
    metrics.finished(ended(metrics), "length", 13.0)
    value = metrics.registry.get_sample_value
    assert value("baton_tpot_seconds_sum") == pytest.approx(0.5)
    assert value("baton_request_prompt_tokens_sum") == 3
    assert value("baton_request_output_tokens_sum") == 5
    assert value("baton_request_decode_seconds_sum") == pytest.approx(2.0)
    [request] = metrics.recent.requests
    assert (request.id, request.outcome, request.output_tokens) == ("r", "length", 5)


def test_a_handoffs_bandwidth_is_over_the_time_with_writes_in_flight() -> None:
    metrics = RouterMetrics()
    ended(metrics)
    value = metrics.registry.get_sample_value
    assert value("baton_handoff_bytes_per_second_sum") == pytest.approx(8_000_000 / 0.4)
    link = {"prefill": "prefill-0", "decode": "decode-0"}
    assert value("baton_link_bytes_total", link) == 8_000_000
    assert metrics.recent.links["prefill-0", "decode-0"].count == 1


def test_a_sequence_without_a_token_has_no_lengths() -> None:
    metrics = RouterMetrics()
    sequence = SequenceState(
        worker_pb2.Work(prompt=[1], sampling=sampling_pb2.SamplingParams()),
        Waterfall(arrival=0.0, observer=metrics),
    )
    metrics.finished(sequence, "unavailable", 1.0)
    assert metrics.registry.get_sample_value("baton_request_output_tokens_count") == 0
    assert metrics.recent.requests[0].outcome == "unavailable"


def test_a_worker_counts_once_under_its_current_role_whoever_assigned_it() -> None:
    metrics = RouterMetrics()
    value = metrics.registry.get_sample_value
    prefill, decode = ({"role": role, "worker": "decode-0"} for role in ("prefill", "decode"))
    metrics.workers.changed("decode-0", "decode", up=True)
    metrics.workers.changed("decode-0", "prefill", up=True)  # router role
    assert value("baton_worker_up", prefill) == 1
    assert value("baton_worker_up", decode) is None
    assert value("baton_worker_connects_total", decode) == 1
    assert value("baton_worker_connects_total", prefill) is None
    metrics.workers.changed("decode-0", "prefill", up=False)
    metrics.workers.changed("decode-0", "prefill", up=True)
    assert value("baton_worker_up", prefill) == 1
    assert value("baton_worker_connects_total", prefill) == 1


def test_a_gateway_reads_the_load_of_all_workers_from_the_router() -> None:
    metrics = RouterMetrics()
    first = metrics.registry.get_sample_value
    assert first("baton_cluster_token_usage") == 0
    assert b"cache_config_info{" not in generate_latest(metrics.registry)

    metrics.watch_cluster(lambda: ClusterLoad.of([session(6, 1, 30), session(2, 0, 50)], held_back=3))
    found = exported([MetricSource(metrics.registry, {"model_name": "m"})], MetricNames.VLLM)
    labels = {"model_name": "m"}
    assert found.get_sample_value("vllm:num_requests_running", labels) == 8
    assert found.get_sample_value("vllm:num_requests_waiting", labels) == 4
    assert found.get_sample_value("vllm:kv_cache_usage_perc", labels) == pytest.approx(0.6)
    pools = {**labels, "block_size": "16", "num_gpu_blocks": "200"}
    assert found.get_sample_value("vllm:cache_config_info", pools) == 1
    adapters = {"max_lora": "4", "running_lora_adapters": "sql", "waiting_lora_adapters": ""}
    assert found.get_sample_value("vllm:lora_requests_info", labels | adapters)


def session(running: int, waiting: int, free_pages: int) -> Any:
    load = WorkerLoad(RequestPages(16))
    report = worker_pb2.Load(running=running, waiting=waiting, free_pages=free_pages, total_pages=100)
    load.report(report, 0)
    adapters = SimpleNamespace(uses=[worker_pb2.AdapterUse(name="sql", running=1)])
    return SimpleNamespace(
        load=load, adapters=adapters, info=worker_pb2.WorkerInfo(num_pages=100, max_loras=4)
    )
