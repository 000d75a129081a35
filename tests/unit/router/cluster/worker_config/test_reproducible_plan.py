"""`--reproducible` on GPUs: planned, or refused by the name of what it does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.worker_config.machine import PlanError
from router.cluster.worker_config.reproducible import gpu_obstacles
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.flags.command_line import parse
from tests.unit.router.cluster.worker_config.models import CPU, gpu, write_model


@pytest.mark.parametrize("flags", [[], ["--dtype", "bfloat16"], ["--speculative", "ngram"]])
def test_workers_on_gpus_compute_reproducibly(flags: list[str], checkpoint: Checkpoint) -> None:
    config = parse(["--model", "m", "--reproducible", *flags])
    (worker,) = plan_workers(config, checkpoint, gpu(141))
    assert worker.config.engine.reproducible
    assert worker.config.engine.numerics.endswith("on cuda, reproducible")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dtype", "float32"], ["float32", "--dtype bfloat16"]),
        (["--dtype", "float16"], ["float16", "--dtype bfloat16"]),
        (["--quantization", "fp8"], ["quantized weights", "a checkpoint in bfloat16"]),
        (["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype fp8"]),
        (["--enable-lora"], ["--enable-lora"]),
        (["--tensor-parallel-size", "2"], ["--tensor-parallel-size"]),
    ],
)
def test_what_gpus_have_no_kernels_for_is_refused_by_name(
    flags: list[str], words: list[str], checkpoint: Checkpoint
) -> None:
    with pytest.raises(PlanError) as refused:
        plan_workers(parse(["--model", "m", "--reproducible", *flags]), checkpoint, gpu(141))
    for word in ("--reproducible: not possible here", *words):
        assert word in str(refused.value)


def test_windows_are_refused_by_name(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    checkpoint = Checkpoint(write_model(tmp_path, **changes), "windows")
    with pytest.raises(PlanError, match="windows"):
        plan_workers(parse(["--model", "m", "--reproducible"]), checkpoint, gpu(141))


def test_draft_models_are_refused_by_name(checkpoint: Checkpoint) -> None:
    config = parse(["--model", "m", "--speculative", "model", "--speculative-model", "d"])
    (why,) = gpu_obstacles(config, checkpoint.spec(), "bfloat16")
    assert "--speculative ngram" in why


def test_what_a_gpu_has_no_kernels_for_is_planned_for_a_cpu(checkpoint: Checkpoint) -> None:
    config = parse(["--model", "m", "--reproducible", "--enable-lora", "--dtype", "float32"])
    assert plan_workers(config, checkpoint, CPU)[0].config.engine.reproducible
