"""Families whose layers differ from plain attention, in float32: the answers of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import save
from tests.gpu.test_gpu_engine import expected
from tests.unit.engine.modeling.models.references import TINY, reference

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("chunk", [16, None])
@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3", "gpt-oss", "deepseek v3", "glm5", "qwen3.5", "nemotron-h", "kimi linear"]
)
def test_answers_in_float32_equal_those_of_transformers(name: str, chunk: int | None, tmp_path: Path) -> None:
    prompts = [[t % TINY["vocab_size"] for t in random_tokens(n, seed=n)] for n in (5, 100, 33, 1)]
    model = reference(name)
    model.save_pretrained(tmp_path)
    config = gpu_config(
        tmp_path,
        dtype="float32",
        attention_backend="torch",
        chunk_budget=chunk,
        max_model_len=512,
        overlap=True,
    )
    answers = generate(config, prompts, GREEDY)
    assert answers == [expected(model.cuda(), prompt, 24) for prompt in prompts]


@pytest.mark.parametrize("name", ["deepseek v3", "deepseek v3.2", "qwen3.5", "nemotron-h"])
def test_a_gpu_answers_in_bfloat16(name: str, tmp_path: Path) -> None:
    """Heads of sizes without kernels run in plain torch."""
    prompts = [[t % TINY["vocab_size"] for t in random_tokens(n, seed=n)] for n in (5, 100, 33, 1)]
    reference(name).save_pretrained(tmp_path)
    graphs = {"cuda_graph_max_batch": 4, "cuda_graph_max_tokens": 64}
    config = gpu_config(tmp_path, attention_backend="auto", max_model_len=512, overlap=True, **graphs)
    answers = generate(config, prompts, GREEDY)
    assert [len(answer) for answer in answers] == [24] * len(prompts)
    torch.cuda.synchronize()


@pytest.mark.parametrize("graphs", [0, 4], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", ["deepseek", "qwen3.5"])
def test_kernels_in_bfloat16_begin_answers_as_float32_does(name: str, graphs: int, tmp_path: Path) -> None:
    prompts = [random_tokens(n, seed=n) for n in (5, 100, 33, 300, 2)]
    save(name, tmp_path)
    exact = gpu_config(tmp_path, dtype="float32", attention_backend="torch", chunk_budget=64)
    config = gpu_config(
        tmp_path, chunk_budget=64, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=16 * graphs
    )
    few = SamplingParams(max_tokens=6, ignore_eos=True)
    pairs = zip(generate(config, prompts, few), generate(exact, prompts, few), strict=True)
    assert sum(ours[:3] == theirs[:3] for ours, theirs in pairs) >= len(prompts) - 1
