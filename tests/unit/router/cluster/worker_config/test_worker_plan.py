"""What each worker is told, from flags, model and machine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import STEP_SHARE
from engine.device.sizes_by_memory import SizesByMemory
from engine.model_config.model_impl import ModelImpl
from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.worker_config.machine import Machine, PlanError, device_for
from router.cluster.worker_config.worker_plan import estimate_pool, plan_workers
from router.config.choices import Device, Dtype, KVCacheDtype, Mode
from router.config.flags.command_line import parse
from router.config.groups.role import RoleSettings
from router.config.settings import RouterConfig
from router.config.table import configured
from tests.unit.engine.modeling.models.references import reference
from tests.unit.router.cluster.worker_config.models import CPU, gpu, plan, write_model
from worker.config import WorkerRole


@pytest.fixture
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The second of its layers sees 512 tokens."""
    folder = tmp_path_factory.mktemp("windowed")
    changes = {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    return Checkpoint(write_model(folder, **changes), "windowed")  # type: ignore[arg-type]


def test_disagg_has_prefill_workers_first_each_with_a_name_of_its_own(checkpoint: Checkpoint) -> None:
    config = RouterConfig(model="m", mode=Mode.DISAGG, prefill_workers=2, decode_workers=3)
    workers = [p.config for p in plan_workers(config, checkpoint, CPU)]
    names = ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]
    assert [worker.worker_id for worker in workers] == names
    assert {worker.transport for worker in workers} == {"nixl"}
    assert workers[0].role is WorkerRole.PREFILL


def test_mixed_mode_hands_nothing_over(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint).transport is None
    assert plan(checkpoint, pull_kv=True).transport == "nixl"


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--mode disagg --prefill-workers 1",
        "--mode adaptive --prefill-workers 1",
        "--chunked-prefill-size 1024",
        "--chunked-prefill-size -1",
        "--disable-chunked-prefill --chunked-prefill-size 4096",
        "--preset vllm",
        "--cuda-graph-max-bs 16",
        "--cuda-graph-max-tokens 0",
        "--tensor-parallel-size 2",
        "--mode disagg --prefill-workers 1 --prefill-chunked-prefill-size 512",
    ],
)
def test_a_worker_on_another_gpu_gets_the_sizes_that_a_plan_for_that_gpu_has(
    checkpoint: Checkpoint, flags: str
) -> None:
    config = parse(["--model", "m", *flags.split()])
    first, other = (plan_workers(config, checkpoint, gpu(gib)) for gib in (141, 24))
    for one, wanted in zip(first, other, strict=True):
        assert one.config.sizes.on(one.config.engine, 24 << 30) == wanted.config.engine
        assert one.config.sizes.on(one.config.engine, 141 << 30) == one.config.engine


def test_without_chunks_the_step_stays_as_large_as_the_longest_prompt(checkpoint: Checkpoint) -> None:
    worker = plan(checkpoint, gpu(141), disable_chunked_prefill=True)
    assert worker.sizes.on(worker.engine, 16 << 30).scheduler == worker.engine.scheduler
    assert plan(checkpoint).sizes == SizesByMemory()


def test_the_context_is_what_the_model_allows_unless_the_pool_is_smaller(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint).engine.max_model_len == 2048
    small = plan(checkpoint, kv_pool_tokens=1000, page_size=16).engine
    assert (small.max_model_len, small.num_pages) == (992, 62)


def test_a_context_longer_than_the_model_s_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(PlanError, match=r"--max-model-len 4096 .* use 2048 or less"):
        plan(checkpoint, max_model_len=4096)


def test_a_context_that_the_memory_cannot_hold_is_refused(checkpoint: Checkpoint) -> None:
    tight = Machine(device="cpu", memory_bytes=3 << 20, cpus=1, host="")
    with pytest.raises(PlanError, match=r"--max-model-len 2048 .* --kv-memory-fraction"):
        plan(checkpoint, tight, max_model_len=2048, kv_memory_fraction=0.5)


def test_a_context_fits_if_it_does_with_what_windows_drop(windowed: Checkpoint) -> None:
    """Layers with windows keep 65 blocks of 2,048 tokens, besides the 128 of the others."""
    small = {"page_size": 16, "chunked_prefill_size": 256, "max_model_len": 2048}
    assert plan(windowed, kv_pool_tokens=1552, **small).engine.num_pages == 2 * 97
    with pytest.raises(PlanError, match=r"--max-model-len 2048 .* a request of"):
        plan(windowed, kv_pool_tokens=1024, **small)
    assert plan(windowed, kv_pool_tokens=1552, **small | {"max_model_len": None}).engine.max_model_len == 2048


def test_a_pool_is_estimated_in_requests_of_the_largest_length(
    checkpoint: Checkpoint, windowed: Checkpoint
) -> None:
    config = configured({"model": "m", "kv_pool_tokens": 4096, "page_size": 16, "chunked_prefill_size": 256})
    plain, small = (estimate_pool(config, each, CPU) for each in (checkpoint, windowed))
    assert plain.tokens == 4096
    assert small.tokens == 2 * 4096 // 16 * 2048 // (128 + 65)
    assert (plain.longest, small.longest) == (2048, 2048)
    assert plain.token_bytes == small.token_bytes, "of tokens that no window drops"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_steps_and_pool_together_take_the_fraction_of_the_memory(device: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_model(tmp_path, weight_bytes=256 << 20), "tiny")
    machine = Machine(device=device, memory_bytes=1 << 30, cpus=1, host="")
    config = RouterConfig(model="m", kv_memory_fraction=0.75, dtype=Dtype.FLOAT32, chunked_prefill_size=256)
    pool = estimate_pool(config, checkpoint, machine)
    taken = (256 << 20) + pool.tokens * pool.token_bytes
    assert 0.74 * machine.memory_bytes < taken <= 0.75 * machine.memory_bytes
    more = replace(config, chunked_prefill_size=16384)
    assert estimate_pool(more, checkpoint, machine).tokens < pool.tokens, "larger steps take of it as well"


def test_kv_in_8_bits_takes_a_quarter_of_float32(checkpoint: Checkpoint) -> None:
    config = RouterConfig(model="m", dtype=Dtype.FLOAT32)
    plain, small = (
        estimate_pool(replace(config, kv_cache_dtype=dtype), checkpoint, CPU)
        for dtype in (KVCacheDtype.AUTO, KVCacheDtype.FP8)
    )
    assert plain.token_bytes == 4 * small.token_bytes


def test_a_fraction_that_the_weights_fill_alone_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_model(tmp_path, weight_bytes=256 << 20), "tiny")
    machine = Machine(device="cpu", memory_bytes=1 << 30, cpus=1, host="")
    with pytest.raises(PlanError, match=r"within 25% of 1.0 GiB .* raise --kv-memory-fraction"):
        plan(checkpoint, machine, kv_memory_fraction=0.25)


@pytest.mark.parametrize(
    ("machine", "chunk"),
    [(CPU, 256), (gpu(16), 2048), (gpu(40), 4096), (gpu(80), 8192), (gpu(141), 16384), (gpu(180), 16384)],
)
def test_chunks_grow_with_the_device(checkpoint: Checkpoint, machine: Machine, chunk: int) -> None:
    assert plan(checkpoint, machine).engine.scheduler.chunk_budget == chunk


@pytest.mark.parametrize(("machine", "chunk"), [(CPU, 256), (gpu(16), 2048), (gpu(141), 2048)])
def test_a_worker_that_only_prefills_has_short_steps(
    checkpoint: Checkpoint, machine: Machine, chunk: int
) -> None:
    config = RouterConfig(model="m", mode=Mode.DISAGG)
    assert chunks(config, checkpoint, machine)[0] == chunk
    assert chunks(config, checkpoint, gpu(180)) == [2048, 16384]


def test_the_step_of_prefill_workers_can_be_set_with_that_of_all_and_by_itself(
    checkpoint: Checkpoint,
) -> None:
    both = RouterConfig(model="m", mode=Mode.DISAGG, chunked_prefill_size=4096)
    assert chunks(both, checkpoint, gpu(141)) == [4096, 4096]
    assert chunks(
        replace(both, roles=RoleSettings(prefill_chunked_prefill_size=1024)), checkpoint, gpu(141)
    ) == [1024, 4096]
    assert chunks(
        replace(both, roles=RoleSettings(prefill_chunked_prefill_size=-1)), checkpoint, gpu(141)
    ) == [None, 4096]


def test_every_worker_of_an_adaptive_cluster_reads_prompts_as_prefill_workers_do(
    checkpoint: Checkpoint,
) -> None:
    config = RouterConfig(model="m", mode=Mode.ADAPTIVE)
    assert chunks(config, checkpoint, gpu(141)) == [2048, 2048]


def test_workers_of_an_adaptive_cluster_hold_the_mean_of_their_steps_below_the_target(
    checkpoint: Checkpoint,
) -> None:
    config = RouterConfig(model="m", mode=Mode.ADAPTIVE, itl_target_ms=20.0)
    for worker in plan_workers(config, checkpoint, gpu(141)):
        settings = worker.config.engine.scheduler
        assert (settings.itl_target_s, settings.tpot_target_s) == (None, 0.02)
        assert settings.step_target_s == pytest.approx(STEP_SHARE * 0.02)
        assert settings.pause_s == pytest.approx(1.6 * 0.02)


def test_a_pause_target_reaches_every_worker_of_an_adaptive_cluster(checkpoint: Checkpoint) -> None:
    config = RouterConfig(model="m", mode=Mode.ADAPTIVE, itl_target_ms=20.0, pause_target_ms=25.0)
    for worker in plan_workers(config, checkpoint, gpu(141)):
        assert worker.config.engine.scheduler.pause_s == 0.025


def chunks(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> list[int | None]:
    return [plan.config.engine.scheduler.chunk_budget for plan in plan_workers(config, checkpoint, machine)]


def test_chunks_fit_pages_and_can_be_turned_off(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint, page_size=24).engine.scheduler.chunk_budget == 240
    assert plan(checkpoint, page_size=1024).engine.scheduler.chunk_budget == 1024
    assert plan(checkpoint, chunked_prefill_size=-1).engine.scheduler.chunk_budget is None
    assert plan(checkpoint, chunked_prefill_size=64).engine.scheduler.chunk_budget == 64


def test_a_gpu_worker_overlaps_captures_graphs_paces_prompts_and_sizes_its_own_pool(
    checkpoint: Checkpoint,
) -> None:
    engine = plan(checkpoint, gpu(141)).engine
    assert engine.overlap
    assert (engine.cuda_graph_max_batch, engine.num_pages, engine.scheduler.itl_target_s) == (512, 0, 0.02)
    assert plan(checkpoint, gpu(141), kv_pool_tokens=1600).engine.num_pages == 100
    assert engine.cuda_graph_max_tokens == 2048
    assert engine.scheduler.token_tile == 128
    assert 0 < engine.scheduler.costly_context < math.inf
    asked = plan(checkpoint, gpu(141), cuda_graph_max_bs=0, cuda_graph_max_tokens=256).engine
    assert (asked.cuda_graph_max_batch, asked.cuda_graph_max_tokens) == (0, 256)
    on_cpu = plan(checkpoint).engine
    assert (on_cpu.overlap, on_cpu.cuda_graph_max_batch, on_cpu.scheduler.itl_target_s) == (False, 0, None)
    assert on_cpu.cuda_graph_max_tokens == 0
    assert on_cpu.scheduler.token_tile == 1


@pytest.mark.parametrize("name", ["cuda_graph_max_bs", "cuda_graph_max_tokens"])
def test_a_cpu_has_no_graphs_whatever_is_asked_for(checkpoint: Checkpoint, name: str) -> None:
    engine = plan(checkpoint, **{name: 8}).engine
    assert (engine.cuda_graph_max_batch, engine.cuda_graph_max_tokens) == (0, 0)


def test_a_prefill_worker_has_no_decodes_to_capture(checkpoint: Checkpoint) -> None:
    config = RouterConfig(model="m", mode=Mode.DISAGG)
    engines = [worker.config.engine for worker in plan_workers(config, checkpoint, gpu(141))]
    assert [engine.cuda_graph_max_batch for engine in engines] == [0, 512]


def test_the_pace_of_prompts_can_be_set_and_turned_off(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint, itl_target_ms=50.0).engine.scheduler.itl_target_s == 0.05
    assert plan(checkpoint, gpu(80), itl_target_ms=0.0).engine.scheduler.itl_target_s is None


def test_weights_are_16_bit_on_gpu_and_on_cpu_what_is_faster(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint, replace(CPU, cpu_dtype="float32")).engine.dtype == "float32"
    assert plan(checkpoint, replace(CPU, cpu_dtype="bfloat16")).engine.dtype == "bfloat16"
    assert plan(checkpoint, replace(CPU, cpu_dtype="bfloat16"), dtype=Dtype.FLOAT32).engine.dtype == "float32"
    assert plan(checkpoint, gpu(80)).engine.dtype == "bfloat16"
    assert plan(checkpoint, dtype=Dtype.BFLOAT16).engine.dtype == "bfloat16"


def test_a_gpu_is_used_where_there_is_one_and_missed_only_when_asked_for() -> None:
    assert device_for(Device.AUTO, 0) == "cpu"
    assert device_for(Device.AUTO, 2) == "cuda"
    assert device_for(Device.CPU, 2) == "cpu"
    with pytest.raises(PlanError, match="--device cpu"):
        device_for(Device.CUDA, 0)


def test_a_rank_holds_its_part_of_weights_and_kv(checkpoint: Checkpoint) -> None:
    alone, shared = (plan(checkpoint, kv_memory_fraction=0.5, tensor_parallel_size=n).engine for n in (1, 2))
    assert shared.tensor_parallel_size == 2
    assert shared.num_pages == pytest.approx(2 * alone.num_pages, rel=1e-3)


def test_a_role_may_have_ranks_of_its_own(checkpoint: Checkpoint) -> None:
    config = RouterConfig(
        model="m",
        mode=Mode.DISAGG,
        tensor_parallel_size=2,
        decode_workers=3,
        roles=RoleSettings(decode_tensor_parallel_size=1),
    )
    plans = plan_workers(config, checkpoint, CPU)
    assert [plan.ranks for plan in plans] == [2, 1, 1, 1]
    assert config.num_ranks == 5
    assert all(plan.config.kv_by_ranks for plan in plans)


def test_pages_of_heads_of_two_sizes_go_between_equal_numbers_of_ranks(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    reference("gemma4", num_heads=4).save_pretrained(tmp_path)
    other = replace(checkpoint, path=tmp_path)
    config = RouterConfig(model="m", mode=Mode.DISAGG, tensor_parallel_size=2)
    assert [each.ranks for each in plan_workers(config, other, CPU)] == [2, 2]
    roles = RoleSettings(decode_tensor_parallel_size=1)
    with pytest.raises(PlanError, match=r"size 2 and --decode-tensor-parallel-size 1: .* equal numbers"):
        plan_workers(replace(config, roles=roles), other, CPU)


def test_kv_goes_from_rank_to_rank_only_where_a_worker_has_several(checkpoint: Checkpoint) -> None:
    assert not plan(checkpoint, mode=Mode.DISAGG).kv_by_ranks
    assert not plan(checkpoint, tensor_parallel_size=2).kv_by_ranks


def test_a_model_that_cannot_be_shared_out_is_refused_by_the_flag_that_asked(checkpoint: Checkpoint) -> None:
    with pytest.raises(PlanError, match=r"--tensor-parallel-size 3 .* 4 attention heads .* can be 1, 2, 4"):
        plan(checkpoint, tensor_parallel_size=3)
    with pytest.raises(PlanError, match="--decode-tensor-parallel-size 3 does not suit tiny"):
        plan(checkpoint, decode_tensor_parallel_size=3)


def test_transformers_modules_are_chosen_by_a_flag_and_run_on_one_rank(checkpoint: Checkpoint) -> None:
    assert plan(checkpoint).engine.model_impl is ModelImpl.AUTO
    general = {"model_impl": ModelImpl.TRANSFORMERS}
    assert plan(checkpoint, **general).engine.model_impl is ModelImpl.TRANSFORMERS
    with pytest.raises(PlanError, match=r"transformers' modules, which serve .* run on one"):
        plan(checkpoint, **general, tensor_parallel_size=2)


def test_each_role_has_its_own_chunks_pool_graphs_and_accelerator(checkpoint: Checkpoint) -> None:
    settings = {
        "model": "m",
        "mode": Mode.DISAGG,
        "kv_memory_fraction": 0.5,
        "prefill_chunked_prefill_size": -1,
        "decode_chunked_prefill_size": 512,
        "decode_kv_pool_tokens": 32_000,
        "prefill_kv_memory_fraction": 0.8,
        "prefill_cuda_graph_max_tokens": 0,
        "decode_cuda_graph_max_bs": 64,
        "decode_cuda_graph_max_tokens": 128,
        "prefill_accelerator": "H100",
        "decode_accelerator": "H20",
    }
    prefill, decode = plan_workers(configured(settings), checkpoint, gpu(24))
    assert (prefill.accelerator, decode.accelerator) == ("H100", "H20")
    assert (prefill.config.engine.scheduler.chunk_budget, decode.config.engine.scheduler.chunk_budget) == (
        None,
        512,
    )
    assert (prefill.config.engine.kv_memory_fraction, prefill.config.engine.num_pages) == (0.8, 0)
    assert decode.config.engine.num_pages == 2000, "the role's pool stands before the fraction for all"
    assert (prefill.config.engine.cuda_graph_max_tokens, prefill.config.engine.cuda_graph_max_batch) == (0, 0)
    assert decode.config.engine.cuda_graph_max_tokens == 128
    assert decode.config.engine.cuda_graph_max_batch == 64


def test_sizes_follow_from_the_accelerator_of_the_role(checkpoint: Checkpoint) -> None:
    settings = {"model": "m", "mode": Mode.DISAGG, "accelerator": "A10G", "decode_accelerator": "B200"}
    assert chunks(configured(settings), checkpoint, gpu(80)) == [2048, 16384]
    unknown = {**settings, "decode_accelerator": "H1000"}
    assert chunks(configured(unknown), checkpoint, gpu(80)) == [2048, 8192], "as the machine that was asked"


def test_an_accelerator_needs_a_gpu(checkpoint: Checkpoint) -> None:
    with pytest.raises(PlanError, match="--accelerator H100 needs GPUs"):
        plan(checkpoint, accelerator="H100")
