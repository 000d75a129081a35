"""Checkpoints that Baton refuses, and what its refusal says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.unit.engine.modeling.loader.published_quantization import (
    AWQ,
    BLOCKS,
    FP8_DYNAMIC,
    GPTQ,
    KV_FP8,
    MODELOPT_NVFP4,
    W4A16,
    compressed,
)
from tests.unit.engine.modeling.loader.published_shapes import LLAMA_8B, Config


@dataclass(frozen=True, slots=True)
class Refused:
    name: str
    quantization: Config
    named: tuple[str, ...]
    shape: Config = field(default_factory=lambda: LLAMA_8B)

    @property
    def config(self) -> Config:
        return self.shape | {"quantization_config": self.quantization}


REFUSED: Final = [
    Refused(
        "a method of another library", {"quant_method": "hqq"}, ("quant_method='hqq'", "--quantization fp8")
    ),
    Refused(
        "bitsandbytes, packed for FSDP",
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
        ("bnb_4bit_quant_storage='bfloat16'", "'uint8'"),
    ),
    Refused(
        "quark in 4-bit integers",
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 128}}},
        ("quark", "dtype='uint4'", "'fp4' or 'fp8_e4m3'"),
    ),
    Refused(
        "quark with formats by module",
        {"quant_method": "quark", "layer_quant_config": {"*.down_proj": {}}},
        ("quark", "layer_quant_config", "{}"),
    ),
    Refused("AWQ for single rows", AWQ | {"version": "gemv"}, ("awq", "version='gemv'", "'gemm'")),
    Refused("AWQ without zero points", AWQ | {"zero_point": False}, ("awq", "zero_point=False", "True")),
    Refused("GPTQ in 3 bits", GPTQ | {"bits": 3}, ("gptq", "bits=3", "4 or 8")),
    Refused(
        "GPTQ as Marlin packs it",
        GPTQ | {"checkpoint_format": "marlin"},
        ("checkpoint_format='marlin'", "'gptq' or 'gptq_v2'"),
    ),
    Refused(
        "GPTQ as Marlin packs it, of 2024", GPTQ | {"is_marlin_format": True}, ("is_marlin_format=True",)
    ),
    Refused(
        "QuantTrio/…-GPTQ-Int4-Int8Mix",
        GPTQ | {"dynamic": {"-:.*mtp.*": {}, "+:.*layers\\.[0-9]\\..*": {"bits": 8, "group_size": 128}}},
        ("gptq", "dynamic['+:", "'bits': 8"),
    ),
    Refused("blocks of 64", BLOCKS | {"weight_block_size": [64, 64]}, ("weight_block_size=[64, 64]", "128")),
    Refused(
        "blocks with static activations",
        BLOCKS | {"activation_scheme": "static"},
        ("activation_scheme='static'",),
    ),
    Refused("FP8 in e5m2", BLOCKS | {"fmt": "e5m2"}, ("fmt='e5m2'", "'e4m3'")),
    Refused(
        "two formats of the same modules",
        compressed("mixed-precision", W4A16)
        | {
            "config_groups": {
                f"group_{n}": {"targets": ["Linear"], "weights": W4A16, "format": "pack-quantized"}
                for n in range(2)
            }
        },
        ("two formats of all linear layers",),
    ),
    Refused(
        "2:4 sparsity",
        compressed("float-quantized", *FP8_DYNAMIC, sparsity_config={"format": "sparse-24-bitmask"}),
        ("sparsity_config", "format='sparse-24-bitmask'", "'dense'"),
    ),
    Refused(
        "rotated weights",
        compressed("pack-quantized", W4A16, transform_config={"config_groups": {"u": {}}}),
        ("transform_config",),
    ),
    Refused(
        "weights as Marlin packs them with 2:4 sparsity",
        compressed("marlin-24", W4A16),
        ("format='marlin-24'", "4-bit int", "W4A16"),
    ),
    Refused(
        "FP8 of weights alone, in blocks",
        compressed("float-quantized", FP8_DYNAMIC[0] | {"strategy": "block"}),
        ("weights alone", "strategy='block'", "'tensor' or 'channel'"),
    ),
    Refused(
        "AutoRound in a packing of its own",
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:exllamav2"},
        ("packing_format='auto_round:exllamav2'", "'auto_round:auto_gptq' or 'auto_round:auto_awq'"),
    ),
    Refused(
        "KV scales per head",
        compressed("float-quantized", *FP8_DYNAMIC, kv_cache_scheme=KV_FP8 | {"strategy": "attn_head"}),
        ("kv_cache_scheme", "strategy='attn_head'", "'tensor'"),
    ),
    Refused(
        "NVIDIA's mixed precision without a list",
        MODELOPT_NVFP4 | {"quant_algo": "MIXED_PRECISION"},
        ("modelopt", "quant_algo='MIXED_PRECISION'", "quantized_layers"),
    ),
    Refused(
        "NVIDIA's mixed precision with an unknown format",
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "W4A8_AWQ"}},
        },
        ("quant_algo='W4A8_AWQ'", "'FP8' or 'NVFP4'"),
    ),
    Refused(
        "NVIDIA's scales of KV alone",
        MODELOPT_NVFP4 | {"quant_algo": None, "kv_cache_quant_algo": "FP8"},
        ("modelopt", "quant_algo=None", "'FP8' or 'NVFP4'"),
    ),
    Refused(
        "FP8 without a strategy",
        compressed("float-quantized", FP8_DYNAMIC[0] | {"strategy": None}, FP8_DYNAMIC[1]),
        ("strategy=None", "'tensor' or 'channel' or 'block'"),
    ),
    Refused(
        "integers without a strategy",
        compressed("pack-quantized", W4A16 | {"strategy": None}),
        ("strategy=None", "'group' or 'channel'"),
    ),
    Refused(
        "some of the merged projections",
        compressed("pack-quantized", W4A16, ignore=["lm_head", "re:.*v_proj"]),
        ("model.layers.0.self_attn.v_proj",),
    ),
]
