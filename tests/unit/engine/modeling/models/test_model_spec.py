"""What config.json is read as, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.model_config.balanced_context import balanced_context
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.rope_spec import RopeScaling
from engine.model_config.quantization import WeightFormat

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "eos_token_id": 50256,
}


def without(field: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key != field}


def test_sizes_that_a_config_leaves_out_follow_from_the_others() -> None:
    llama = ModelSpec.from_config(
        {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    )
    gpt2 = ModelSpec.from_config(GPT2)

    assert (llama.head_dim, llama.num_kv_heads, llama.q_size, llama.kv_size) == (128, 32, 4096, 4096)
    assert (gpt2.head_dim, gpt2.num_kv_heads, gpt2.intermediate_size) == (64, 12, 3072)
    assert balanced_context(gpt2) == 6 * 768, "a layer has 12 * 768 ** 2 weights, a token of context 2 * 768"
    assert gpt2.tied_embeddings
    assert not llama.tied_embeddings


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 5e5},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
    ],
    ids=["transformers 4", "before that", "transformers 5"],
)
def test_rope_is_read_in_every_spelling(rope: dict[str, Any]) -> None:
    spec = ModelSpec.from_config(LLAMA | rope).rope

    assert spec is not None
    assert (spec.scaling, spec.factor, spec.theta) == (RopeScaling.LINEAR, 4.0, 5e5)


def test_the_generation_config_says_which_tokens_end_a_chat_turn(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert ModelSpec.from_folder(tmp_path).eos_token_ids == (128001,)

    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [128001, 128009]}))
    assert ModelSpec.from_folder(tmp_path).eos_token_ids == (128001, 128009)


def test_a_model_without_an_end_token_has_none() -> None:
    assert ModelSpec.from_config(LLAMA | {"eos_token_id": None}).eos_token_ids == ()


def windows(architecture: str, **fields: Any) -> tuple[int | None, ...]:
    config = LLAMA | {"architectures": [architecture], "num_hidden_layers": 4} | fields
    return ModelSpec.from_config(config).attention.windows


def test_layers_have_the_windows_of_their_type() -> None:
    assert windows("MistralForCausalLM", sliding_window=4096) == (4096,) * 4
    assert windows("MistralForCausalLM", sliding_window=None) == ()
    assert windows("MistralForCausalLM", sliding_window=131072) == (), "it covers the longest context"
    types = ["sliding_attention", "full_attention"] * 2
    assert windows("MistralForCausalLM", sliding_window=64, layer_types=types) == (64, None, 64, None)


@pytest.mark.parametrize(
    ("architecture", "fields", "expected"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": False}, ()),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 64)),
        ("Gemma2ForCausalLM", {"hidden_activation": "gelu_pytorch_tanh"}, (64, None, 64, None)),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 3}, (64, 64, None, 64)),
        ("Olmo3ForCausalLM", {}, (64, 64, 64, None)),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLLG"}, (64, 64, 64, None)),
        ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}, (64, None, 64, None)),
    ],
)
def test_families_know_which_layers_have_a_window(
    architecture: str, fields: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert windows(architecture, sliding_window=64, **fields) == expected


def test_what_an_unknown_architecture_needs_is_named() -> None:
    config = {"architectures": ["MambaForCausalLM"], "state_size": 16}
    with pytest.raises(UnsupportedModel, match=r"MambaForCausalLM .*it needs Mamba's or another"):
        ModelSpec.from_config(config)
    with pytest.raises(UnsupportedModel, match="chunked_attention are not supported"):
        windows("MistralForCausalLM", layer_types=["chunked_attention"] * 4)


def test_yarn_extends_the_context_that_the_checkpoint_states() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    short = LLAMA | {"max_position_embeddings": 32768, "rope_scaling": yarn}
    assert ModelSpec.from_config(short).max_position == 131072


def test_gemma3_with_a_vision_part_is_read_as_its_language_model() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": text | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        "vision_config": {"hidden_size": 1152},
    }
    spec = ModelSpec.from_config(config)

    assert (spec.num_layers, spec.num_heads, spec.head_dim, spec.vocab_size) == (34, 8, 256, 262208)
    assert spec.tied_embeddings
    assert (spec.eos_token_ids, spec.dtype) == ((1, 106), "bfloat16")
    assert [spec.window(layer) for layer in range(6)] == [1024] * 5 + [None]
    near, far = spec.rope_of(0), spec.rope_of(5)
    assert near is not None
    assert far is not None
    assert (near.theta, near.factor, far.theta, far.factor) == (1e4, 1.0, 1e6, 8.0)


def test_ministral_3_scales_queries_beyond_the_context_before_yarn() -> None:
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384}
    config = LLAMA | {"architectures": ["Ministral3ForCausalLM"], "max_position_embeddings": 262144}
    scaled = ModelSpec.from_config(config | {"rope_parameters": yarn | {"llama_4_scaling_beta": 0.1}})
    plain = ModelSpec.from_config(config | {"rope_parameters": yarn})
    assert scaled.rope is not None
    assert plain.rope is not None
    assert (scaled.rope.query_scaling, plain.rope.query_scaling) == (0.1, 0.0)
    assert scaled.max_position == plain.max_position == 262144


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        ({"architectures": None, "model_type": "electra"}, "'electra'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 4.0}}, "'axial'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        ModelSpec.from_config(LLAMA | change)


@pytest.mark.parametrize("field", ["vocab_size", "num_hidden_layers", "rms_norm_eps"])
def test_a_config_that_lacks_a_field_is_refused_by_the_fields_name(field: str) -> None:
    with pytest.raises(UnsupportedModel, match=field):
        ModelSpec.from_config(without(field))


def test_a_null_field_is_one_that_the_config_lacks() -> None:
    with pytest.raises(UnsupportedModel, match="num_hidden_layers"):
        ModelSpec.from_config(LLAMA | {"num_hidden_layers": None})


def test_quantization_is_read_from_the_file_of_nvidias_older_checkpoints(tmp_path: Path) -> None:
    algorithm = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt", "version": "0.17"}, "quantization": algorithm}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))

    quantization = ModelSpec.from_folder(tmp_path).quantization

    assert quantization is not None
    assert (quantization.format, quantization.per_tensor) == (WeightFormat.FP8_ROWS, True)
    assert not quantization.covers("lm_head")


@pytest.mark.parametrize("beside", [True, False], ids=["file beside it", "producer alone"])
def test_quantization_without_a_method_is_that_of_its_producer(tmp_path: Path, beside: bool) -> None:
    fields = {"quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": fields}))
    if beside:
        own = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))

    quantization = ModelSpec.from_folder(tmp_path).quantization

    assert quantization is not None
    assert quantization.format is WeightFormat.FP8_ROWS


def test_another_language_model_within_a_known_wrapper_is_refused() -> None:
    text = LLAMA | {"model_type": "deepseek_v3"}
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    with pytest.raises(UnsupportedModel, match=r"of the type deepseek_v3 .*with ministral3 or mistral"):
        ModelSpec.from_config(config)


def test_a_known_language_model_is_read_within_any_wrapper() -> None:
    text = LLAMA | {"model_type": "llama"}
    config = {"architectures": ["SomeForConditionalGeneration"], "vision_config": {}, "text_config": text}
    assert ModelSpec.from_config(config) == ModelSpec.from_config(LLAMA)
    with pytest.raises(UnsupportedModel, match=r"SomeFor.* another language model"):
        ModelSpec.from_config(config | {"text_config": text | {"model_type": "unheard of"}})


def test_the_refusal_of_an_architecture_lists_those_that_run() -> None:
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel, .*LlamaForCausalLM, .*MistralForCausalLM"):
        ModelSpec.from_config({"architectures": ["OPTForCausalLM"]})


def test_gpt2_variants_with_other_arithmetic_are_refused() -> None:
    for change in ({"scale_attn_weights": False}, {"activation_function": "relu"}):
        with pytest.raises(UnsupportedModel, match=next(iter(change))):
            ModelSpec.from_config(GPT2 | change, impl=ModelImpl.BATON)


def test_a_broken_config_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        ModelSpec.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"config\.json is not valid JSON"):
        ModelSpec.from_folder(tmp_path)


def test_windows_are_given_for_every_layer_or_for_none() -> None:
    llama = ModelSpec.from_config(LLAMA | {"num_hidden_layers": 3})
    assert [llama.window(layer) for layer in range(3)] == [None] * 3

    windowed = replace(llama, attention=AttentionSpec(windows=(4096, None, 4096)))
    assert [windowed.window(layer) for layer in range(3)] == [4096, None, 4096]
    with pytest.raises(UnsupportedModel, match="2 layers have a window or none, of 3 layers"):
        replace(llama, attention=AttentionSpec(windows=(4096, None)))


def test_the_router_can_read_a_spec_without_loading_torch() -> None:
    program = "import sys, engine.modeling.loader.checkpoint; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_attention_in_windows_costs_no_more_behind_them() -> None:
    full = ModelSpec.from_config(LLAMA | {"num_hidden_layers": 4})
    narrow = replace(full, attention=AttentionSpec(windows=(100, 100, 100, None)))
    assert balanced_context(narrow) == pytest.approx(4 * balanced_context(full) - 3 * 100)
    wide = replace(full, attention=AttentionSpec(windows=(100_000, None, None, None)))
    assert balanced_context(wide) == balanced_context(full)


def test_a_latent_row_takes_the_memory_of_its_features_and_no_more() -> None:
    config = LLAMA | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "q_lora_rank": None,
        "n_shared_experts": None,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 32,
    }
    spec = ModelSpec.from_config(config)
    assert spec.kv_token_bytes(2) == 32 * 576 * 2
    per_layer = 4096 * (32 * 192 + 576 + 32 * 128) + 512 * 32 * 256 + 3 * 4096 * 14336
    assert spec.parameters == 32 * per_layer + 2 * 128256 * 4096


def test_parameters_are_those_of_the_matrices() -> None:
    llama, gpt2 = ModelSpec.from_config(LLAMA), ModelSpec.from_config(GPT2)

    assert llama.parameters == 8_029_995_008, "Llama-3.1-8B, without 266,240 weights of norms"
    assert llama.active_parameters == llama.parameters - 128256 * 4096, "an embedding is looked up"
    assert gpt2.parameters == gpt2.active_parameters == 12 * 12 * 768**2 + 50257 * 768
