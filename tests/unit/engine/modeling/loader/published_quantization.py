"""`quantization_config` as the tools of publishers write it."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.engine.modeling.loader.published_shapes import Config


def arguments(bits: int, kind: str, strategy: str, **others: Any) -> Config:
    """Arguments of weights or activations, with the fields that llm-compressor writes whether they are used
    or not.
    """
    unset = dict.fromkeys(("actorder", "block_structure", "group_size"))
    fixed = {"dynamic": False, "observer": "minmax", "observer_kwargs": {}, "symmetric": True}
    return unset | fixed | {"num_bits": bits, "strategy": strategy, "type": kind} | others


def compressed(
    packing: str,
    weights: Config,
    activations: Config | None = None,
    *,
    targets: Any = ("Linear",),
    **others: Any,
) -> Config:
    group = {
        "input_activations": activations,
        "output_activations": None,
        "targets": list(targets),
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": packing,
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    } | others


BLOCKS: Final = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
FP8_DYNAMIC: Final = (
    arguments(8, "float", "channel"),
    arguments(8, "float", "token", dynamic=True, observer=None),
)
FP8_STATIC: Final = arguments(8, "float", "tensor"), arguments(8, "float", "tensor")
FP8_BLOCKS: Final = (
    arguments(8, "float", "block", block_structure=[128, 128]),
    arguments(8, "float", "group", dynamic=True, group_size=128),
)
W4A16: Final = arguments(4, "int", "group", group_size=128)
NVFP4: Final = (
    arguments(4, "float", "tensor_group", group_size=16),
    arguments(4, "float", "tensor_group", group_size=16, dynamic="local"),
)
AWQ: Final = {
    "bits": 4,
    "do_fuse": False,
    "exllama_config": None,
    "fuse_max_seq_len": None,
    "group_size": 128,
    "modules_to_fuse": None,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ: Final = {
    "bits": 4,
    "block_name_to_quantize": None,
    "damp_percent": 0.1,
    "dataset": None,
    "desc_act": False,
    "exllama_config": {"version": 1},
    "group_size": 128,
    "modules_in_block_to_quantize": None,
    "quant_method": "gptq",
    "sym": True,
    "true_sequential": True,
    "use_exllama": True,
}
MODELOPT_GROUP: Final = {
    "input_activations": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
    "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
    "targets": ["Linear"],
}
MODELOPT_NVFP4: Final = {
    "config_groups": {"group_0": MODELOPT_GROUP},
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quant_algo": "NVFP4",
    "quant_method": "modelopt",
}
KV_FP8: Final = arguments(8, "float", "tensor")
