"""Models and machines to plan workers for."""

from __future__ import annotations

import json
from pathlib import Path

from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.worker_config.machine import Machine
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.table import configured
from worker.config import WorkerConfig

CPU = Machine(device="cpu", memory_bytes=8 << 30, cpus=2, host="127.0.0.1")


def gpu(gib: int) -> Machine:
    return Machine(device="cuda", memory_bytes=gib << 30, cpus=1, host="")


def write_model(folder: Path, max_position: int = 2048, weight_bytes: int = 64, **changes: object) -> Path:
    """A Llama whose weights are a hole in a file: enough for arithmetic. `changes`: of config.json."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_position,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(weight_bytes)
    return folder


def plan(checkpoint: Checkpoint, machine: Machine = CPU, **settings: object) -> WorkerConfig:
    return plan_workers(configured({"model": "m", **settings}), checkpoint, machine)[-1].config
