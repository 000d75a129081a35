"""Checkpoints of FBGEMM, bitsandbytes and AMD's Quark, and with quantized heads, that Baton loads."""

from __future__ import annotations

from typing import Final

from tests.unit.engine.modeling.loader.published_accepted import LAYER_1, Accepted, dense
from tests.unit.engine.modeling.loader.published_quantization import FP8_DYNAMIC, GPTQ, compressed
from tests.unit.engine.modeling.loader.published_shapes import LLAMA_8B

VENDORS: Final = [
    Accepted(
        "meta-llama/Llama-3.1-405B-Instruct-FP8",
        LLAMA_8B,
        {"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"], "quant_method": "fbgemm_fp8"},
        dense("fp8"),
        (LAYER_1 + "mlp.up_proj.input_scale_ub",),
    ),
    Accepted(
        "unsloth/Llama-3.1-8B-Instruct-bnb-4bit",
        LLAMA_8B,
        {
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "load_in_4bit": True,
            "quant_method": "bitsandbytes",
        },
        dense("plain"),
    ),
    Accepted(
        "amd/Llama-3.1-8B-Instruct-MXFP4, as Quark exports it",
        LLAMA_8B,
        {
            "exclude": ["lm_head"],
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
            "global_quant_config": {
                "input_tensors": {"dtype": "fp4", "is_dynamic": True, "qscheme": "per_group"},
                "weight": {
                    "dtype": "fp4",
                    "group_size": 32,
                    "is_dynamic": False,
                    "qscheme": "per_group",
                    "scale_format": "e8m0",
                },
            },
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "quant_method": "quark",
        },
        dense("mxfp4 quark"),
    ),
    Accepted("GPTQ of the head", LLAMA_8B, GPTQ | {"lm_head": True}, dense("gptq") | {"lm_head": "gptq"}),
    Accepted(
        "llm-compressor of the head",
        LLAMA_8B,
        compressed("float-quantized", *FP8_DYNAMIC, ignore=[]),
        dense("fp8") | {"lm_head": "fp8"},
    ),
    Accepted(
        "NVIDIA's mixed precision with a quantized head",
        LLAMA_8B,
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
        },
        dense("plain") | {"lm_head": "nvfp4 modelopt"},
        ("lm_head.input_scale",),
    ),
]
