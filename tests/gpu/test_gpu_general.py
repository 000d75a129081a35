"""Families that Baton has, run by transformers' modules on a GPU: the same tokens, also in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.sampling_params import SamplingParams
from engine.executor.graphs.cuda_graphs import DecodeGraphs
from engine.loop.engine import Engine
from engine.model_config.model_impl import ModelImpl
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import save

PROMPTS = [random_tokens(length, seed=length) for length in (5, 100, 33, 64, 200, 1, 17)]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
NAMES = ("llama-128", "qwen2-windows", "mixtral", "qwen3-experts")


@pytest.mark.parametrize("name", NAMES)
def test_in_float32_both_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    settings = {"dtype": "float32", "attention_backend": "torch", "chunk_budget": 64}
    by_baton, by_transformers = (
        generate(gpu_config(tmp_path, **settings, model_impl=impl), PROMPTS, GREEDY)
        for impl in (ModelImpl.BATON, ModelImpl.TRANSFORMERS)
    )
    assert by_transformers == by_baton


@pytest.mark.parametrize(("graphs", "tokens"), [(8, 0), (4, 64)])
@pytest.mark.parametrize("name", NAMES)
def test_graphs_change_no_token_in_bfloat16(name: str, graphs: int, tokens: int, tmp_path: Path) -> None:
    save(name, tmp_path)
    config = {"chunk_budget": 64, "model_impl": ModelImpl.TRANSFORMERS}
    plain = generate(gpu_config(tmp_path, **config), PROMPTS, GREEDY)
    captured = gpu_config(
        tmp_path, **config, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=tokens, overlap=True
    )
    assert generate(captured, PROMPTS, GREEDY) == plain


def test_decodes_are_captured(tmp_path: Path) -> None:
    save("llama-128", tmp_path)
    engine = Engine(gpu_config(tmp_path, model_impl=ModelImpl.TRANSFORMERS, cuda_graph_max_batch=8))
    assert any(isinstance(path, DecodeGraphs) for path in engine.runner._forwards)
    engine.close()
