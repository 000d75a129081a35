"""What a scrape of a worker says."""

from __future__ import annotations

import time

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rpc.baton.v1 import worker_pb2
from worker.session.metrics import WorkerMetrics


def scraped(stats: worker_pb2.WorkerStats | None) -> dict[tuple[str, str], float]:
    """Value by name and label ("" if there is none)."""
    metrics = WorkerMetrics()
    metrics.watch(lambda: stats, max_running=64, max_loras=2)
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            values[sample.name, "".join(sample.labels.values())] = sample.value
    return values


def test_adapters_by_place_and_by_their_requests() -> None:
    uses = [
        worker_pb2.AdapterUse(name="sql", on_device=True, running=2, rank=8, host_bytes=100),
        worker_pb2.AdapterUse(name="poet", waiting=1, rank=4, host_bytes=50),
        worker_pb2.AdapterUse(name="idle", rank=4, host_bytes=50),
    ]
    values = scraped(worker_pb2.WorkerStats(load=worker_pb2.Load(adapters=uses)))
    assert values["baton_adapter_slots_used", ""] == 1
    assert values["baton_adapter_slots", ""] == 2
    assert values["baton_adapter_host_bytes", ""] == 200
    assert abs(values["baton_lora_requests_info", "2sqlpoet"] - time.time()) < 60
    assert (
        values["baton_adapter_loaded", "sqlgputrue8"] == values["baton_adapter_loaded", "idlecpufalse4"] == 1
    )


def test_pages_slots_and_load() -> None:
    values = scraped(
        worker_pb2.WorkerStats(
            pages=worker_pb2.PageCounts(free=1, held=2, cached=3, in_flight=4, quarantined=5, leaving=6),
            state_slots=worker_pb2.PageCounts(held=7),
            load=worker_pb2.Load(waiting=8, running=9, waiting_tokens=10, free_pages=25, total_pages=100),
        )
    )
    states = ("free", "held", "cached", "in_flight", "quarantined", "leaving")
    assert [values["baton_kv_pages", state] for state in states] == [1, 2, 3, 4, 5, 6]
    assert values["baton_state_slots", "held"] == 7
    assert values["baton_waiting_requests", ""] == 8
    assert values["baton_running_requests", ""] == 9
    assert values["baton_waiting_tokens", ""] == 10
    assert values["baton_max_running_requests", ""] == 64
    assert values["baton_token_usage", ""] == pytest.approx(0.75)


def test_pages_by_kind_of_layers() -> None:
    window = worker_pb2.GroupPages(kind="window-512", held=3, cached=4)
    values = scraped(
        worker_pb2.WorkerStats(groups=[worker_pb2.GroupPages(kind="full", held=1, cached=2), window])
    )
    kinds = ("fullheld", "fullcached", "window-512held", "window-512cached")
    assert [values["baton_kv_group_pages", kind] for kind in kinds] == [1, 2, 3, 4]


def test_looked_up_tokens_are_those_found_and_those_computed() -> None:
    values = scraped(worker_pb2.WorkerStats(prompt_tokens=100, cache_hit_tokens=30))
    assert values["baton_computed_prompt_tokens_total", ""] == 100
    assert values["baton_cache_hit_tokens_total", ""] == 30
    assert values["baton_cache_queried_tokens_total", ""] == 130


def test_tiers_are_counted_in_bytes() -> None:
    tier = worker_pb2.KVTier(name="host", pages=2, capacity=3, demoted=5, promoted=7)
    tiers = worker_pb2.KVTiers(tiers=[tier], page_bytes=1000, dropped=4, faults={"digest": 6})
    values = scraped(worker_pb2.WorkerStats(tiers=tiers))
    assert values["baton_kv_tier_bytes", "host"] == 2000
    assert values["baton_kv_tier_capacity_bytes", "host"] == 3000
    assert values["baton_kv_demoted_bytes_total", "host"] == 5000
    assert values["baton_kv_promoted_bytes_total", "host"] == 7000
    assert values["baton_kv_dropped_pages_total", ""] == 4
    assert values["baton_kv_tier_faults_total", "digest"] == 6


def test_accepted_tokens_by_position() -> None:
    values = scraped(worker_pb2.WorkerStats(accepted_at=[5, 2]))
    assert values["baton_accepted_tokens_at_total", "0"] == 5
    assert values["baton_accepted_tokens_at_total", "1"] == 2


def test_an_engine_that_does_not_answer_leaves_no_state() -> None:
    names = {name for name, _ in scraped(None)}
    assert "baton_kv_pages" not in names
    assert "baton_worker_ready" in names
