"""How long `router plan` thinks that steps take, against what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.model_config.quantization_config import read_quantization
from router.placement import EVERYTHING, StepWork
from simulator.device import H200_8B
from simulator.planner.costs import LLAMA_8B, Basis, costs_of, kv_bytes_per_token, weight_bytes
from simulator.planner.hardware import GPUS, H200
from simulator.planner.model_shape import shape_of
from tests.unit.engine.modeling.loader.published_shapes import DEEPSEEK_V2_LITE, GPT_OSS_20B, QWEN3_5_9B

LLAMA_70B = shape_of("llama-3.1-70b")
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "dtype": "bfloat16",
}
DECODES = StepWork(0, 0.0, 64, 64 * 2000.0)
PROMPT = StepWork(8192, 8192 * 4096.0, 0, 0.0)


def test_the_measured_pair_of_model_and_gpu_is_used_as_measured() -> None:
    costs = costs_of(shape_of("llama-3.1-8b"), H200, 1)
    assert costs.basis is Basis.MEASURED
    assert costs.device is H200_8B
    assert costs.kv_tokens == pytest.approx(832_000, rel=0.01)
    assert costs.link.kv_bytes_per_token == kv_bytes_per_token(LLAMA_8B) == 131_072


@pytest.mark.parametrize(("gpu", "ranks"), [("h100", 1), ("h200", 2)])
def test_anything_else_is_estimated(gpu: str, ranks: int) -> None:
    assert costs_of(LLAMA_8B, GPUS[gpu], ranks).basis is Basis.ESTIMATED


def test_decodes_follow_the_memory_and_prompts_the_arithmetic() -> None:
    """An H100 has the H200's arithmetic and 0.7 of its bandwidth."""
    device = costs_of(LLAMA_8B, GPUS["h100"], 1).device
    decodes, prompt = (device.seconds(w) / H200_8B.seconds(w) for w in (DECODES, PROMPT))
    assert decodes == pytest.approx(4.8 / 3.35, rel=0.1)
    assert prompt == pytest.approx(1.0, rel=0.05)


def test_a_larger_model_takes_longer_in_proportion_to_its_weights() -> None:
    times = weight_bytes(LLAMA_70B) / weight_bytes(LLAMA_8B)
    device = costs_of(LLAMA_70B, H200, 1).device
    assert device.seconds(PROMPT) / H200_8B.seconds(PROMPT) == pytest.approx(times, rel=0.15)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
LLAMA_8B_AWQ = replace(LLAMA_8B, quantization=read_quantization({"quantization_config": AWQ}))


@pytest.mark.parametrize(
    ("model", "rows", "context", "milliseconds"),
    [
        (LLAMA_8B, 1, 1024, 4.0),
        (LLAMA_8B.quantized("fp8"), 1, 1024, 2.72),
        (LLAMA_8B.quantized("fp8"), 8, 1024, 3.6),
        (LLAMA_8B.quantized("fp8"), 64, 1024, 6.1),
        (LLAMA_8B_AWQ, 1, 1024, 3.0),
        (LLAMA_8B_AWQ, 64, 1024, 8.5),
        (LLAMA_70B.quantized("fp8"), 28, 640, 27.8),
    ],
)
def test_decodes_in_each_format_take_what_was_measured(
    model: ModelSpec, rows: int, context: int, milliseconds: float
) -> None:
    """Milliseconds are those of benchmarks.gpu.decode; the 70B in a chat at 4 requests/s, TPOT."""
    decodes = StepWork(0, 0.0, rows, float(rows * context))
    assert 1e3 * costs_of(model, H200, 1).device.seconds(decodes) == pytest.approx(milliseconds, rel=0.03)


OSS_LAYERS = {"num_hidden_layers": 24, "layer_types": ["sliding_attention", "full_attention"] * 12}
GPT_OSS = ModelSpec.from_config(
    GPT_OSS_20B | OSS_LAYERS | {"quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}
)
GEMMA_3_4B = ModelSpec.from_config(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
)
V2_LITE = ModelSpec.from_config(DEEPSEEK_V2_LITE | {"num_hidden_layers": 27})
TEXT = QWEN3_5_9B["text_config"] | {"num_hidden_layers": 32}
QWEN3_5 = ModelSpec.from_config(QWEN3_5_9B | {"dtype": "bfloat16", "text_config": TEXT})


@pytest.mark.parametrize(
    ("model", "rows", "context", "milliseconds"),
    [
        (GPT_OSS, 1, 1024, 3.0),
        (GPT_OSS, 64, 4096, 9.2),
        (GPT_OSS, 256, 1024, 13.9),
        (GEMMA_3_4B, 1, 1024, 3.0),
        (GEMMA_3_4B, 64, 4096, 8.6),
        (V2_LITE, 1, 1024, 2.94),
        (V2_LITE, 64, 4096, 11.5),
        (QWEN3_5, 1, 1024, 4.34),
        (QWEN3_5, 64, 1024, 8.09),
    ],
)
def test_decodes_of_models_unlike_llama_are_estimated_within_an_eighth(
    model: ModelSpec, rows: int, context: int, milliseconds: float
) -> None:
    decodes = StepWork(0, 0.0, rows, float(rows * context))
    assert 1e3 * costs_of(model, H200, 1).device.seconds(decodes) == pytest.approx(milliseconds, rel=0.125)


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_more_rows_never_take_less_time_whatever_the_format(gpu: str) -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    for config in (QWEN3_30B_A3B, QWEN3_30B_A3B | {"quantization_config": blocks}, GPT_OSS):
        model = config if isinstance(config, ModelSpec) else ModelSpec.from_config(config)
        device = costs_of(model, GPUS[gpu], 1).device
        seconds = [device.of_matrices(rows) for rows in range(1, 600)]
        assert seconds == sorted(seconds)


def test_two_ranks_are_faster_than_one_but_not_twice() -> None:
    one, two = (costs_of(LLAMA_70B, GPUS["b200"], ranks).device.seconds(DECODES) for ranks in (1, 2))
    assert one / 2 < two < 0.8 * one


def test_layers_with_windows_attend_to_their_windows_alone() -> None:
    attention = replace(LLAMA_8B.attention, windows=(1024, None) * 16)
    costs = costs_of(replace(LLAMA_8B, attention=attention), H200, 1)
    assert costs.basis is Basis.ESTIMATED
    without = replace(costs.device, reach=EVERYTHING)
    long, seen = (StepWork(0, 0.0, 64, 64.0 * tokens) for tokens in (8192, (8192 + 1024) / 2))
    assert costs.device.seconds(long) == pytest.approx(without.seconds(seen))
    short = StepWork(0, 0.0, 64, 64 * 500.0)
    assert costs.device.seconds(short) == without.seconds(short)


def test_recurrent_states_take_memory_and_limit_the_requests_that_run() -> None:
    delta = RecurrentSpec(
        layers=frozenset(range(24)), key_heads=16, value_heads=64, key_dim=128, value_dim=128, kernel=4
    )
    plain, stateful = (
        costs_of(model, GPUS["h100"], 1) for model in (LLAMA_8B, replace(LLAMA_8B, recurrent=delta))
    )
    assert (plain.max_running, plain.state_slots) == (512, 0)
    assert stateful.max_running == stateful.state_slots < 512
    assert stateful.link.state_bytes == delta.state_bytes(2)
    # What is read and written comes from the same memory as contexts: 2 * 105 MB at the speed of the KV of
    # a context of 128 KiB a token.
    decodes = StepWork(0, 0.0, 64, 0.0)
    without = replace(stateful.device, state=0.0)
    per_token = plain.device.context / plain.link.kv_bytes_per_token
    more = stateful.device.seconds(decodes) - without.seconds(decodes)
    assert more == pytest.approx(64 * 2 * delta.state_bytes(2) * per_token)


def test_a_step_reads_only_the_experts_that_its_rows_reach() -> None:
    """Qwen3-30B-A3B's shape beside a dense model of its active size, and one of its whole size."""
    experts = ModelSpec.from_config(QWEN3_30B_A3B)
    assert experts.parameters == pytest.approx(30.5e9, rel=0.01)
    assert experts.active_parameters == pytest.approx(3.0e9, rel=0.03)
    one, many = (costs_of(experts, H200, 1).device.of_matrices(rows) for rows in (1, 256))
    per_byte = H200_8B.of_matrices(1) / LLAMA_8B.active_parameters
    assert one == pytest.approx(experts.active_parameters * per_byte, rel=0.01)
    assert many == pytest.approx(experts.parameters * per_byte, rel=0.1), "every expert is read"
    long = costs_of(experts, H200, 1).device.of_matrices(16_384)
    dense = H200_8B.of_matrices(16_384) * experts.active_parameters / LLAMA_8B.active_parameters
    assert long == pytest.approx(dense, rel=0.1), (
        "long prompts are bound by the arithmetic of the active experts"
    )
