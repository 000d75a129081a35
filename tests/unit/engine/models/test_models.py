"""Every architecture against transformers, from one folder on disk, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.loader.model_loader import load_model
from engine.models import registry
from engine.models.base import CausalLM
from engine.spec.architectures import ARCHITECTURES
from tests.unit.engine.dense_attention import DenseAttention

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,  # wide, or every token would get about the same logits
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}


def reference(name: str, num_heads: int = 6) -> PreTrainedModel:
    torch.manual_seed(0)
    tiny = TINY | {"num_attention_heads": num_heads}
    match name:
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**tiny))
        case "llama with tied embeddings":
            model = LlamaForCausalLM(LlamaConfig(**tiny, tie_word_embeddings=True))
        case "llama with every bias":
            model = LlamaForCausalLM(LlamaConfig(**tiny, attention_bias=True, mlp_bias=True))
        case "llama with linear scaling":
            model = LlamaForCausalLM(LlamaConfig(**tiny, rope_parameters=LINEAR))
        case "llama 3":
            model = LlamaForCausalLM(LlamaConfig(**tiny, rope_parameters=LLAMA3))
        case "mistral":
            model = MistralForCausalLM(MistralConfig(**tiny, sliding_window=None, head_dim=16))
        case "mistral within its window":
            model = MistralForCausalLM(MistralConfig(**tiny, sliding_window=256))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**tiny))
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**tiny, head_dim=16, tie_word_embeddings=True))
        case "gpt2":
            config = GPT2Config(
                vocab_size=97, n_embd=48, n_head=num_heads, n_layer=3, n_positions=512, initializer_range=0.1
            )
            model = GPT2LMHeadModel(config)
    # Biases and norms start as zeros and ones: swapped or forgotten, they would go unnoticed.
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


NAMES = [
    "llama",
    "llama with tied embeddings",
    "llama with every bias",
    "llama with linear scaling",
    "llama 3",
    "mistral",
    "mistral within its window",
    "qwen2",
    "qwen3",
    "gpt2",
]


@torch.inference_mode()
def logits(model: CausalLM, ids: Tensor) -> Tensor:
    return model.logits(model(ids, torch.arange(len(ids)), DenseAttention(model.part.num_heads)))


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    oracle = reference(name)
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (200,), generator=torch.Generator().manual_seed(1))

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)


def test_every_architecture_that_a_spec_accepts_has_a_model() -> None:
    assert set(ARCHITECTURES) == set(registry._MODELS)


@torch.inference_mode()
def test_bfloat16_weights_give_logits_near_the_reference(tmp_path: Path) -> None:
    oracle = reference("qwen3")
    oracle.save_pretrained(tmp_path)
    ids = torch.arange(50)

    ours = logits(load_model(tmp_path, dtype="bfloat16"), ids)

    exact = oracle(ids[None]).logits[0]
    assert (ours.float() - exact).norm() / exact.norm() < 0.05


@torch.inference_mode()
def test_hidden_states_do_not_depend_on_what_the_caller_keeps(tmp_path: Path) -> None:
    """Layers write into their arguments; what the caller passes must survive."""
    reference("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    ids, positions = torch.arange(20), torch.arange(20)

    first = model(ids, positions, DenseAttention(model.part.num_heads))
    second = model(ids, positions, DenseAttention(model.part.num_heads))

    assert torch.equal(first, second)
    assert torch.equal(ids, torch.arange(20))
