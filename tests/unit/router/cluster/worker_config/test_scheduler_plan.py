"""How the scheduling flags reach the workers."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Batching, Policy, SchedulerConfig
from engine.modeling.loader.checkpoint import Checkpoint
from engine.sched.presets import PRESETS, Preset
from router.cluster.worker_config.machine import Machine, PlanError
from router.cluster.worker_config.scheduler_plan import scheduler_for
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.flags.command_line import parse
from router.config.flags.values import ConfigError
from router.config.table import SETTINGS
from worker.config import WorkerConfig

CPU = Machine(device="cpu", memory_bytes=8 << 30, cpus=2, host="127.0.0.1")
H200 = Machine(device="cuda", memory_bytes=141 << 30, cpus=1, host="")
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    return Checkpoint(tmp_path, "tiny")


def worker(checkpoint: Checkpoint, flags: str, machine: Machine = CPU) -> WorkerConfig:
    return plan_workers(parse(["--model", "m", *flags.split()]), checkpoint, machine)[-1].config


def scheduler(checkpoint: Checkpoint, flags: str, machine: Machine = CPU) -> SchedulerConfig:
    return worker(checkpoint, flags, machine).engine.scheduler


def test_a_threshold_of_0_is_given_and_not_left_to_the_preset(checkpoint: Checkpoint) -> None:
    flags = "--schedule-policy priority --priority-preemption-threshold 0"
    assert scheduler(checkpoint, flags).priority_preemption_threshold == 0


def test_settings_of_the_scheduler_name_fields_that_it_has() -> None:
    named = {setting.option.scheduler for setting in SETTINGS.values()} - {None}
    assert named <= {field.name for field in fields(SchedulerConfig)}


def test_every_scheduling_flag_reaches_the_workers(checkpoint: Checkpoint) -> None:
    flags = """--schedule-policy priority --batching alternating --max-prefill-tokens 512
        --long-prefill-token-threshold 128 --max-num-partial-prefills 4 --max-long-partial-prefills 2
        --fair-partial-prefills --schedule-conservativeness 1.3 --low-priority-values-first
        --priority-preemption-threshold 10 --aging-tokens 5000 --fair-share-tokens 4096
        --chunked-prefill-size 256 --max-running-requests 32 --max-queued-requests 64 --speculative off"""
    assert scheduler(checkpoint, flags) == SchedulerConfig(
        policy=Policy.PRIORITY,
        batching=Batching.ALTERNATING,
        max_running_requests=32,
        max_waiting_requests=64,
        chunk_budget=256,
        max_prefill_tokens=512,
        long_prefill_token_threshold=128,
        max_partial_prefills=4,
        max_long_partial_prefills=2,
        fair_partial_prefills=True,
        schedule_conservativeness=1.3,
        low_priority_values_first=True,
        priority_preemption_threshold=10,
        aging_tokens=5000,
        tenant_quantum=4096,
        costly_context=scheduler(checkpoint, "").costly_context,
    )
    assert scheduler(checkpoint, "--itl-target-ms 50").itl_target_s == 0.05


@pytest.mark.parametrize("preset", [Preset.SGLANG, Preset.VLLM, Preset.ROSEINFER])
@pytest.mark.parametrize("machine", [CPU, H200], ids=["cpu", "gpu"])
def test_a_preset_is_carried_to_the_workers_as_it_is(
    checkpoint: Checkpoint, preset: Preset, machine: Machine
) -> None:
    settings = PRESETS[preset]
    config = worker(checkpoint, f"--preset {preset.value}", machine)
    assert config.engine.scheduler == settings.scheduler, "without an ITL target, also on GPUs"
    assert config.engine.page_size == settings.page_size


def test_what_is_given_stands_before_the_preset(checkpoint: Checkpoint) -> None:
    config = worker(
        checkpoint, "--preset sglang --page-size 16 --schedule-policy lpm --chunked-prefill-size 4096"
    )
    assert config.engine.page_size == 16
    assert config.engine.scheduler.policy is Policy.LPM
    assert config.engine.scheduler.chunk_budget == 4096
    assert config.engine.scheduler.max_partial_prefills == 1


def test_a_preset_may_be_named_in_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("preset: sglang\nlong-prefill-token-threshold: 512\n")
    config = worker(checkpoint, f"--config {file}").engine
    assert (config.page_size, config.scheduler.long_prefill_token_threshold) == (1, 512)


def test_the_threshold_may_follow_the_context(checkpoint: Checkpoint) -> None:
    auto = scheduler(checkpoint, "--long-prefill-token-threshold auto")
    assert auto.long_prefill_token_threshold == "auto"


def test_a_threshold_of_0_is_no_limit(checkpoint: Checkpoint) -> None:
    for flags in ("", "--preset vllm", "--preset sglang", "--preset roseinfer", "--disable-chunked-prefill"):
        room = "--chunked-prefill-size 8192" if "disable" in flags else ""
        plan = scheduler(checkpoint, f"{flags} {room} --long-prefill-token-threshold 0")
        assert plan.long_prefill_token_threshold is None


@pytest.mark.parametrize("threshold", ["", "--long-prefill-token-threshold 0"])
def test_several_partial_prefills_of_vllm_have_its_threshold_and_one_long_prompt(
    checkpoint: Checkpoint, threshold: str
) -> None:
    plan = scheduler(checkpoint, f"--preset vllm --max-num-partial-prefills 4 {threshold}")
    assert plan.longest_chunk(8192) == 327, "4% of the context"
    assert plan.max_long_partial_prefills == 1


def test_several_partial_prefills_keep_what_is_given(checkpoint: Checkpoint) -> None:
    given = "--long-prefill-token-threshold 512 --max-long-partial-prefills 2"
    plan = scheduler(checkpoint, f"--preset vllm --max-num-partial-prefills 4 {given}")
    assert (plan.long_prefill_token_threshold, plan.max_long_partial_prefills) == (512, 2)
    two = scheduler(checkpoint, "--preset vllm --max-num-partial-prefills 4 --max-long-partial-prefills 2")
    assert (two.long_prefill_token_threshold, two.max_long_partial_prefills) == ("auto", 2)
    one = scheduler(checkpoint, "--preset vllm --max-num-partial-prefills 1")
    assert (one.long_prefill_token_threshold, one.max_long_partial_prefills) == (None, None)
    ours = scheduler(checkpoint, "--max-num-partial-prefills 4")
    assert (ours.long_prefill_token_threshold, ours.max_long_partial_prefills) == (None, None)


def test_the_names_of_sglang_and_vllm_mean_the_same(checkpoint: Checkpoint) -> None:
    for flags, batching in (
        ("--enable-mixed-chunk", Batching.MIXED),
        ("--no-enable-mixed-chunk", Batching.PREFILL_FIRST),
    ):
        assert scheduler(checkpoint, flags).batching is batching
    assert scheduler(checkpoint, "--scheduling-policy fcfs").policy is Policy.FCFS
    assert scheduler(checkpoint, "--enable-priority-scheduling").policy is Policy.PRIORITY
    assert scheduler(checkpoint, "--prefill-chunk-size 64").long_prefill_token_threshold == 64


def test_chunking_off_keeps_the_budget_or_drops_it(checkpoint: Checkpoint) -> None:
    kept = scheduler(checkpoint, "--no-enable-chunked-prefill --max-num-batched-tokens 8192")
    assert (kept.chunked_prefill, kept.chunk_budget) == (False, 8192)
    dropped = scheduler(checkpoint, "--chunked-prefill-size -1")
    assert (dropped.chunked_prefill, dropped.chunk_budget) == (False, None)


def test_a_budget_without_chunking_must_hold_the_longest_prompt(checkpoint: Checkpoint) -> None:
    with pytest.raises(PlanError, match="a step of 2048 tokens cannot hold a prompt of 8192"):
        worker(checkpoint, "--disable-chunked-prefill --chunked-prefill-size 2048")


def test_only_aligned_chunks_need_a_page_size_that_divides_the_step(checkpoint: Checkpoint) -> None:
    """vLLM's chunks may end within a page."""
    assert scheduler(checkpoint, "--preset vllm --max-num-batched-tokens 1000").chunk_budget == 1000


@pytest.mark.parametrize("flags", ["--chunked-prefill-size -1", "--batching prefill-first"])
def test_a_gpu_has_no_itl_target_where_no_chunks_are_sized_beside_decodes(
    checkpoint: Checkpoint, flags: str
) -> None:
    assert scheduler(checkpoint, "", H200).itl_target_s == 0.02
    assert scheduler(checkpoint, flags, H200).itl_target_s is None


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "preset": st.sampled_from(list(Preset)),
            "schedule-policy": st.sampled_from(list(Policy)),
            "batching": st.sampled_from(list(Batching)),
            "chunked-prefill-size": st.sampled_from([-1, 16, 100, 2048]),
            "page-size": st.sampled_from([1, 16]),
            "max-prefill-tokens": st.integers(-1, 40),
            "long-prefill-token-threshold": st.sampled_from(["auto", "0", "8", "64"]),
            "max-num-partial-prefills": st.integers(-1, 4),
            "max-long-partial-prefills": st.integers(-1, 4),
            "schedule-conservativeness": st.sampled_from([0.0, 1.5]),
            "priority-preemption-threshold": st.integers(-1, 1),
            "aging-tokens": st.integers(0, 2),
            "fair-share-tokens": st.integers(0, 2),
            "itl-target-ms": st.sampled_from([-1.0, 0.0, 10.0]),
            "max-running-requests": st.sampled_from([0, 8, 10**12]),
        },
    ),
    st.sets(
        st.sampled_from(["disable-chunked-prefill", "fair-partial-prefills", "low-priority-values-first"])
    ),
)
def test_flags_are_refused_at_the_start_or_make_a_scheduler(values: dict[str, object], on: set[str]) -> None:
    given = [f"--{name}={getattr(value, 'value', value)}" for name, value in values.items()]
    try:
        config = parse(["--model=m", *given, *(f"--{name}" for name in on)])
    except ConfigError:
        return
    planned = scheduler_for(config, chunk=256, on_gpu=True, costly_context=math.inf)
    assert planned.max_running_requests == config.max_running_requests
