"""The line of a worker's settings, read with the greps of guides to chunked prefill."""

from __future__ import annotations

import re

import pytest

from engine.config import SchedulerConfig
from engine.sched.presets import PRESETS, Preset
from tests.engine_config import engine_config
from worker.process.settings_line import settings_line


def line(scheduler: SchedulerConfig, **more: int) -> str:
    config = engine_config(scheduler=scheduler, num_pages=1024)
    return settings_line(config, pool_tokens=16384, context=8192, **more)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"Chunked prefill is (\w+)", "enabled"),
        (r"chunked_prefill_size=(-?\d+)", "2048"),
        (r"max_total_num_tokens=(\d+)", "16384"),
        (r"max_prefill_tokens=(\d+)", "16384"),
        (r"context_len=(\d+)", "8192"),
        (r"available_gpu_mem=([\d.]+) GB", "12.5"),
        (r"schedule_policy=([\w-]+)", "fcfs"),
        (r"batching=([\w-]+)", "prefill-first"),
        (r"long_prefill_token_threshold=(\w+)", "none"),
        (r"max_num_partial_prefills=(\w+)", "1"),
    ],
)
def test_the_greps_of_the_guides_find_the_settings(pattern: str, found: str) -> None:
    text = line(PRESETS[Preset.SGLANG].scheduler, free_bytes=12_500_000_000)
    assert re.findall(pattern, text) == [found]


def test_prompts_cut_by_a_threshold_alone_are_chunked() -> None:
    text = line(PRESETS[Preset.ROSEINFER].scheduler)
    assert "Chunked prefill is enabled, with chunks of at most 256 tokens" in text
    assert "chunked_prefill_size=-1" in text
    assert "available_gpu_mem" not in text


@pytest.mark.parametrize(
    "scheduler",
    [SchedulerConfig(chunked_prefill=False), SchedulerConfig(chunk_budget=None, chunked_prefill=False)],
)
def test_whole_prompts_are_said_so_with_and_without_a_budget(scheduler: SchedulerConfig) -> None:
    assert "Chunked prefill is disabled, prompts are computed whole" in line(scheduler)


def test_a_pause_target_stands_beside_the_mean_that_it_belongs_to() -> None:
    paced = line(SchedulerConfig(tpot_target_s=0.02, pause_target_s=0.03))
    assert "step_target_ms=19.2, pause_target_ms=30" in paced
    assert "step_target_ms=none, pause_target_ms=none," in line(SchedulerConfig(), free_bytes=1)


def test_a_line_of_a_cpu_says_nothing_of_gpus_and_of_settings_that_are_not_set() -> None:
    text = line(SchedulerConfig())
    assert "none" not in text
    assert "cuda" not in text
    assert "max_total_num_tokens=16384" in text


@pytest.mark.parametrize(
    ("scheduler", "largest"),
    [
        (SchedulerConfig(chunk_budget=2048), 2048),
        (SchedulerConfig(chunk_budget=2048, max_prefill_tokens=512), 512),
        (SchedulerConfig(chunk_budget=2048, long_prefill_token_threshold=100), 100),
        (SchedulerConfig(chunk_budget=2048, long_prefill_token_threshold="auto"), 327),
        (SchedulerConfig(chunk_budget=None, long_prefill_token_threshold=256), 256),
        (SchedulerConfig(chunk_budget=None), None),
        (SchedulerConfig(chunk_budget=2048, chunked_prefill=False), None),
    ],
)
def test_the_largest_chunk_is_that_of_the_tightest_limit(
    scheduler: SchedulerConfig, largest: int | None
) -> None:
    assert scheduler.largest_chunk(8192) == largest
