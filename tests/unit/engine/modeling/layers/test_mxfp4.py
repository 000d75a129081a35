"""MXFP4 against transformers' own expansion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.quantization import WeightFormat
from engine.model_config.quantization_config import read_quantization
from engine.modeling.layers.formats.fp4 import Mxfp4
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.routing import route

EXPERTS, FEATURES, DEPTH = 4, 24, 96


def stored() -> tuple[Tensor, Tensor]:
    """Every code and any exponent from 2^-20 on, as in a checkpoint."""
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (EXPERTS, FEATURES, DEPTH // 32, 16), dtype=torch.uint8)
    scales = torch.randint(107, 130, blocks.shape[:-1], dtype=torch.uint8)
    return blocks, scales


def expanded(dtype: torch.dtype) -> Tensor:
    """[E, out, in]"""
    return convert_moe_packed_tensors(*stored(), dtype=dtype).transpose(1, 2)


def fill(layer: nn.Module, blocks: Tensor, scales: Tensor) -> None:
    layer.get_parameter("blocks").copy_(blocks.flatten(-2))
    layer.get_parameter("scales").copy_(scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_and_exponents_stand_for_transformers_values(dtype: torch.dtype) -> None:
    method = Mxfp4(dtype)
    layer = nn.Module()
    method.create(layer, DEPTH, FEATURES, stack=(EXPERTS,))
    fill(layer, *stored())

    dense = method.dense(dict(layer.named_parameters()))

    assert dense.dtype == dtype
    assert torch.equal(dense, expanded(dtype))


def test_experts_multiply_with_the_values() -> None:
    method = Mxfp4(torch.float32)
    stack = nn.Module()
    method.create(stack, DEPTH, FEATURES, stack=(EXPERTS,))
    fill(stack, *stored())
    routes = route(torch.randn(5, EXPERTS), None, ExpertSpec(count=EXPERTS, per_token=2, intermediate_size=8))
    x = torch.randn(5, DEPTH)

    products = method.pack_stack(stack)(x, routes, True)

    weights = expanded(torch.float32)
    for place, pair in enumerate(routes.order.tolist()):
        expert = int((routes.starts <= place).sum()) - 1
        torch.testing.assert_close(products[place], weights[expert] @ x[pair // 2])


def test_a_plain_layer_multiplies_with_the_values() -> None:
    layer = Linear(DEPTH, FEATURES, bias=False, method=Mxfp4(torch.float32))
    blocks, scales = stored()
    fill(layer, blocks[0], scales[0])
    layer.pack()
    x = torch.randn(3, DEPTH)

    torch.testing.assert_close(layer(x), x @ expanded(torch.float32)[0].t())


def test_only_experts_of_gpt_oss_are_quantized() -> None:
    left_out = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": left_out}}

    quantization = read_quantization(config)

    assert quantization is not None
    assert quantization.format is WeightFormat.MXFP4
    assert quantization.covers("model.layers.3.mlp.experts.gate_up_proj")
    for module in ("model.layers.3.self_attn.q_proj", "model.layers.3.mlp.router", "lm_head"):
        assert not quantization.covers(module)


def test_memory_is_counted_for_experts_alone() -> None:
    shape = {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
    }
    plain, packed = (
        ModelSpec.from_config(shape | extra).weight_bytes(2)
        for extra in ({}, {"quantization_config": {"quant_method": "mxfp4"}})
    )
    experts = 2 * 8 * 3 * 64 * 128
    assert plain - packed == experts * (2 - 0.5 - 1 / 32)
