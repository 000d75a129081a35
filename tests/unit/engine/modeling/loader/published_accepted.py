"""Well-known checkpoints that Baton reads: config.json of each, and the format of its modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.unit.engine.modeling.loader.published_quantization import (
    AWQ,
    BLOCKS,
    FP8_BLOCKS,
    FP8_DYNAMIC,
    FP8_STATIC,
    GPTQ,
    KV_FP8,
    MODELOPT_NVFP4,
    NVFP4,
    W4A16,
    arguments,
    compressed,
)
from tests.unit.engine.modeling.loader.published_shapes import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GLM_4_5_AIR,
    GPT_OSS_20B,
    LLAMA_8B,
    MISTRAL_SMALL_3_1,
    MIXTRAL,
    OLMOE,
    QWEN3_5_9B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN_MOE_A2_7B,
    Config,
)


@dataclass(frozen=True, slots=True)
class Accepted:
    name: str
    shape: Config
    quantization: Config | None
    modules: dict[str, str]
    """Modules of the checkpoint, and the format of each."""
    unused: tuple[str, ...] = ()
    """Tensors that it has besides."""

    @property
    def config(self) -> Config:
        return self.shape | ({"quantization_config": self.quantization} if self.quantization else {})


def of_attention(format: str, layer: int = 1) -> dict[str, str]:
    return {f"model.layers.{layer}.self_attn.{name}_proj": format for name in "qkvo"}


def dense(format: str) -> dict[str, str]:
    mlp = {f"model.layers.1.mlp.{name}_proj": format for name in ("gate", "up", "down")}
    return of_attention(format) | mlp | {"lm_head": "plain"}


def experts(format: str, gate: str = "model.layers.1.mlp.gate", names: str = "gate_proj down_proj") -> Config:
    block = gate.rpartition(".")[0]
    return {f"{block}.experts.7.{name}": format for name in names.split()} | {gate: "plain"}


OPTIMUM_MODULES: Final = [
    ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"],
    ["self_attn.o_proj"],
    ["mlp.experts.7.up_proj", "mlp.experts.7.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.gate_proj"],
    ["mlp.experts.7.down_proj", "mlp.experts.0.down_proj"],
]
LAYER_1: Final = "model.layers.1."
GATES: Final = [f"model.layers.{layer}.mlp.gate" for layer in range(3)]

ACCEPTED: Final = [
    Accepted("meta-llama/Llama-3.1-8B-Instruct", LLAMA_8B, None, dense("plain")),
    Accepted("Qwen/Qwen3-Coder-30B-A3B-Instruct", QWEN3_30B, None, of_attention("plain") | experts("plain")),
    Accepted(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        MIXTRAL,
        None,
        experts("plain", "model.layers.1.block_sparse_moe.gate", "w1 w2 w3"),
    ),
    Accepted("allenai/OLMoE-1B-7B-0924-Instruct", OLMOE, None, of_attention("plain") | experts("plain")),
    Accepted(
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        DEEPSEEK_V2_LITE,
        None,
        experts("plain") | {"model.layers.1.mlp.shared_experts.up_proj": "plain"},
    ),
    Accepted(
        "zai-org/GLM-4.5-Air",
        GLM_4_5_AIR,
        None,
        of_attention("plain") | experts("plain"),
        ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.e_score_correction_bias"),
    ),
    Accepted("Qwen/Qwen3-8B-FP8", QWEN3_8B, BLOCKS, dense("fp8 blocks")),
    Accepted(
        "Qwen/Qwen3-30B-A3B-FP8",
        QWEN3_30B,
        BLOCKS | {"modules_to_not_convert": ["lm_head", "model.layers.1.input_layernorm", *GATES]},
        of_attention("fp8 blocks") | experts("fp8 blocks"),
    ),
    Accepted(
        "deepseek-ai/DeepSeek-V3.1",
        DEEPSEEK_V3,
        BLOCKS | {"scale_fmt": "ue8m0"},
        experts("fp8 blocks") | {LAYER_1 + "self_attn.kv_b_proj": "fp8 blocks"},
    ),
    Accepted(
        "Qwen/Qwen3.5-9B-FP8, nested",
        QWEN3_5_9B,
        BLOCKS
        | {
            "modules_to_not_convert": [
                "lm_head",
                "model.language_model.layers.1.linear_attn.conv1d",
                "model.language_model.layers.1.linear_attn.in_proj_a",
                "model.language_model.layers.1.linear_attn.in_proj_b",
                "model.language_model.layers.0.linear_attn.in_proj_a",
                "model.language_model.layers.0.linear_attn.in_proj_b",
                "model.language_model.layers.2.linear_attn.in_proj_a",
                "model.language_model.layers.2.linear_attn.in_proj_b",
                "model.visual.blocks.0.attn.qkv",
                "mtp.fc",
            ]
        },
        {
            "model.language_model.layers.1.linear_attn.in_proj_qkv": "fp8 blocks",
            "model.language_model.layers.1.linear_attn.in_proj_a": "plain",
            "model.language_model.layers.1.linear_attn.in_proj_b": "plain",
            "model.language_model.layers.3.self_attn.q_proj": "fp8 blocks",
            "lm_head": "plain",
        },
    ),
    Accepted(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
        LLAMA_8B,
        compressed("float-quantized", *FP8_STATIC, kv_cache_scheme=KV_FP8),
        dense("fp8"),
        (LAYER_1 + "self_attn.q_proj.input_scale", LAYER_1 + "self_attn.k_scale"),
    ),
    Accepted(
        "neuralmagic/Meta-Llama-3-8B-Instruct-FP8-KV, by AutoFP8",
        LLAMA_8B,
        {
            "activation_scheme": "static",
            "ignored_layers": ["lm_head"],
            "kv_cache_scheme": "static",
            "quant_method": "fp8",
        },
        dense("fp8"),
        (LAYER_1 + "self_attn.q_proj.input_scale", LAYER_1 + "self_attn.kv_scale"),
    ),
    Accepted(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
        LLAMA_8B,
        compressed("float-quantized", *FP8_DYNAMIC),
        dense("fp8"),
    ),
    Accepted(
        "RedHatAI/Qwen3-8B-FP8-block",
        QWEN3_8B,
        compressed("float-quantized", *FP8_BLOCKS, ignore=["lm_head"], version="0.12.2"),
        dense("fp8"),
    ),
    Accepted(
        "RedHatAI/Qwen3-30B-A3B-FP8-dynamic",
        QWEN3_30B,
        compressed("float-quantized", *FP8_DYNAMIC, ignore=["re:.*lm_head", "re:.*mlp.gate$"]),
        of_attention("fp8") | experts("fp8"),
    ),
    Accepted(
        "zai-org/GLM-4.5-Air-FP8",
        GLM_4_5_AIR,
        compressed(
            "float-quantized",
            *FP8_DYNAMIC,
            ignore=["lm_head", "model.embed_tokens", "re:.*mlp\\.gate$", "model.layers.3.eh_proj"],
        ),
        of_attention("fp8")
        | experts("fp8")
        | {"model.layers.0.mlp.up_proj": "fp8", "model.layers.1.mlp.shared_experts.up_proj": "fp8"},
        ("model.layers.3.mlp.experts.0.up_proj.weight_scale",),
    ),
    Accepted(
        "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-FP8-dynamic, nested",
        MISTRAL_SMALL_3_1,
        compressed(
            "float-quantized",
            *FP8_DYNAMIC,
            ignore=["language_model.lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ),
        {"language_model." + module: format for module, format in dense("fp8").items()},
        ("vision_tower.transformer.layers.0.attention.q_proj.weight",),
    ),
    Accepted(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
        LLAMA_8B,
        compressed("pack-quantized", W4A16 | {"actorder": "weight"}),
        dense("packed"),
        (LAYER_1 + "mlp.up_proj.weight_shape",),
    ),
    Accepted(
        "neuralmagic w4a16 of 2024, with zeros counted as sparsity",
        LLAMA_8B,
        compressed(
            "pack-quantized",
            W4A16 | {"actorder": "group", "group_size": 64},
            sparsity_config={
                "format": "dense",
                "global_sparsity": 0.14297135853065746,
                "ignore": ["model.layers.0.self_attn.o_proj"],
                "sparsity_structure": "unstructured",
            },
        ),
        dense("packed act-order"),
    ),
    Accepted(
        "asymmetric 4 bits with a format in the group",
        LLAMA_8B,
        compressed("pack-quantized", W4A16 | {"group_size": 32, "symmetric": False}, transform_config={}),
        dense("packed with zeros"),
    ),
    Accepted(
        "only some layers are targets",
        LLAMA_8B,
        compressed("pack-quantized", W4A16, targets=["re:.*self_attn.*", "model.layers.0.mlp.down_proj"]),
        of_attention("packed")
        | {"model.layers.0.mlp.down_proj": "packed", "model.layers.1.mlp.down_proj": "plain"},
    ),
    Accepted(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
        LLAMA_8B,
        compressed(
            "int-quantized",
            arguments(8, "int", "channel"),
            arguments(8, "int", "token", dynamic=True, observer=None),
        ),
        dense("int8"),
    ),
    Accepted(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a16",
        LLAMA_8B,
        compressed("pack-quantized", arguments(8, "int", "channel")),
        dense("packed"),
    ),
    Accepted(
        "RedHatAI/Llama-3.1-8B-Instruct-NVFP4",
        LLAMA_8B,
        compressed("nvfp4-pack-quantized", *NVFP4),
        dense("nvfp4"),
        (LAYER_1 + "mlp.up_proj.input_global_scale",),
    ),
    Accepted(
        "nvidia/Llama-3.1-8B-Instruct-NVFP4",
        LLAMA_8B,
        MODELOPT_NVFP4,
        dense("nvfp4 modelopt"),
        (LAYER_1 + "mlp.up_proj.input_scale", LAYER_1 + "self_attn.k_proj.k_scale"),
    ),
    Accepted(
        "nvidia/DeepSeek-R1-FP4",
        DEEPSEEK_V3,
        {
            "exclude_modules": ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*"],
            "group_size": 16,
            "kv_cache_quant_algo": None,
            "quant_algo": "NVFP4",
            "quant_method": "modelopt",
        },
        experts("nvfp4 modelopt") | {LAYER_1 + "self_attn.o_proj": "plain"},
    ),
    Accepted(
        "nvidia/Qwen3.6-27B-NVFP4, by module",
        QWEN3_5_9B,
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.language_model.layers.3.{name}_proj": algorithm
                for algorithm, names in (
                    ({"quant_algo": "FP8"}, [f"self_attn.{part}" for part in "qkvo"]),
                    ({"quant_algo": "W4A16_NVFP4", "group_size": 16}, ["mlp.gate", "mlp.up", "mlp.down"]),
                )
                for name in names
            },
        },
        of_attention("fp8", 3)
        | {"model.layers.3.mlp.up_proj": "nvfp4 modelopt", "model.layers.2.mlp.up_proj": "plain"},
        ("model.layers.3.mlp.up_proj.input_scale", "model.layers.3.self_attn.q_proj.input_scale"),
    ),
    Accepted(
        "MXFP8 of compressed-tensors",
        LLAMA_8B,
        compressed("mxfp8-quantized", FP8_DYNAMIC[0] | {"strategy": "group", "group_size": 32}),
        dense("fp8"),
    ),
    Accepted(
        "MXFP8 of modelopt",
        LLAMA_8B,
        MODELOPT_NVFP4 | {"quant_algo": "MXFP8", "group_size": 32},
        dense("fp8"),
    ),
    Accepted(
        "Intel/…-int4-AutoRound",
        LLAMA_8B,
        {
            "bits": 4,
            "group_size": 128,
            "packing_format": "auto_round:auto_gptq",
            "quant_method": "auto-round",
            "sym": True,
        },
        dense("gptq"),
    ),
    Accepted("Qwen/Qwen3-8B-AWQ", QWEN3_8B, AWQ, dense("awq")),
    Accepted("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", LLAMA_8B, AWQ, dense("awq")),
    Accepted(
        "TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ",
        MIXTRAL,
        AWQ | {"modules_to_not_convert": ["gate"], "version": "GEMM"},
        experts("awq", "model.layers.1.block_sparse_moe.gate", "w1 w2 w3"),
    ),
    Accepted(
        "AWQ without the first layer, named with a dot behind it",
        QWEN3_30B,
        AWQ | {"modules_to_not_convert": ["lm_head", "model.layers.0.", "mlp.gate"]},
        of_attention("plain", 0) | of_attention("awq") | experts("awq"),
    ),
    Accepted("hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4", LLAMA_8B, GPTQ, dense("gptq")),
    Accepted(
        "GPTQ with act-order, as AutoGPTQ writes it",
        LLAMA_8B,
        GPTQ | {"desc_act": True, "static_groups": False, "model_file_base_name": "model", "sym": False},
        dense("gptq act-order"),
    ),
    Accepted(
        "Qwen/Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4, whose shared experts are not in the list",
        QWEN_MOE_A2_7B,
        GPTQ | {"modules_in_block_to_quantize": OPTIMUM_MODULES},
        of_attention("gptq") | experts("gptq") | {"model.layers.1.mlp.shared_expert.up_proj": "plain"},
        (LAYER_1 + "self_attn.q_proj.g_idx",),
    ),
    Accepted(
        "GPTQModel, with modules left out by patterns",
        QWEN3_30B,
        GPTQ
        | {
            "checkpoint_format": "gptq_v2",
            "dynamic": {"-:.*attn.*": {}, "-:.*mlp\\.gate$": {}, "-:.*mtp.*": {}},
            "lm_head": False,
            "meta": {"quantizer": ["gptqmodel:5.6.0"]},
            "pack_dtype": "int32",
        },
        of_attention("plain") | experts("gptq"),
    ),
    Accepted(
        "openai/gpt-oss-20b",
        GPT_OSS_20B,
        {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        of_attention("plain") | experts("mxfp4", "model.layers.1.mlp.router"),
    ),
]
