"""Graphs that were captured with the old weights compute with the new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.weights import NewWeights
from engine.loop.engine import Engine
from tests.gpu.driving import gpu_config, random_tokens
from tests.gpu.models import build
from tests.gpu.test_gpu_formats import FORMATS, source
from tests.unit.engine.modeling.loader.quantizing import rewrite
from tests.unit.engine.modeling.loader.test_refill import addresses, another

GRAPHS = {"cuda_graph_max_batch": 8, "cuda_graph_max_tokens": 256}
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


def answers(engine: Engine, first_id: int) -> list[list[int]]:
    """Tokens after prompts that graphs compute: first one request alone, then three together."""
    lengths = (200, 90, 20)
    requests = [Request(first_id + i, random_tokens(n, seed=i), GREEDY) for i, n in enumerate(lengths)]
    for together in (requests[:1], requests[1:]):
        for request in together:
            engine.submit(request)
        while engine.has_work:
            engine.step()
            engine.proceed()
    return [list(request.output) for request in requests]


def check(old: Path, new: Path, **changes: Any) -> None:
    fresh = Engine(gpu_config(new, **GRAPHS, **changes))
    expected = answers(fresh, 0)
    fresh.close()
    engine = Engine(gpu_config(old, **GRAPHS, **changes))
    runner: Any = engine.runner
    before = answers(engine, 0)
    places, free = addresses(runner.model), torch.cuda.mem_get_info()[0]

    engine.refill(NewWeights(new))

    assert answers(engine, 10) == expected != before
    assert addresses(runner.model) == places
    assert torch.cuda.mem_get_info()[0] > free - (256 << 20)
    engine.close()


@pytest.mark.parametrize("name", ["llama-64", "qwen2", "qwen3", "mixtral", "deepseek", "qwen3.5"])
def test_tokens_after_a_refill_are_those_of_a_fresh_engine(name: str, tmp_path: Path) -> None:
    # In 16 bits, as checkpoints are: routers of experts are kept as their values need it.
    build(name).bfloat16().save_pretrained(tmp_path / "old")
    check(tmp_path / "old", another(tmp_path / "old", tmp_path / "new"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_packed_weights_of_every_format_are_replaced_under_graphs(
    name: str, format: str, tmp_path: Path
) -> None:
    source(name).save_pretrained(tmp_path / "source")
    another(tmp_path / "source", tmp_path / "other source")
    for folder, target in (("source", "old"), ("other source", "new")):
        rewrite(tmp_path / folder, tmp_path / target, tmp_path / "dense" / target, FORMATS[format])
    check(tmp_path / "old", tmp_path / "new")


def test_weights_quantized_at_load_are_quantized_again(tmp_path: Path) -> None:
    build("llama-128").save_pretrained(tmp_path / "old")
    new = another(tmp_path / "old", tmp_path / "new")
    check(tmp_path / "old", new, quantization="fp8")
