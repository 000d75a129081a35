"""With --reproducible, log-probabilities have the same bits however the tokens are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from baton import LLM, SamplingParams
from engine.model_config.model_spec import ModelSpec
from router.cluster.worker_config.machine import PlanError
from router.cluster.worker_config.reproducible import obstacles
from router.config.choices import Mode
from router.config.settings import RouterConfig
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model

PROMPTS = [[2 + (7 * k + i * i) % 350 for i in range(20 + 61 * k)] for k in range(6)]
COUNT = 20
ASKED: dict[str, Any] = {"temperature": 1.0, "max_tokens": COUNT, "logprobs": 20, "ignore_eos": True}
Bits = list[dict[int, float]]
"""Log-probabilities of each token and of the 20 most likely ones."""


def bits(output: Any) -> Bits:
    return [{token: one.logprob for token, one in each.items()} for each in output.logprobs]


def ask(llm: LLM, prompts: Sequence[Sequence[int]], **more: Any) -> list[tuple[list[int], Bits]]:
    params = [SamplingParams(**ASKED | {"seed": len(prompt)} | more) for prompt in prompts]
    answers = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, progress=False)
    return [(answer.outputs[0].token_ids, bits(answer.outputs[0])) for answer in answers]


def opened(folder: Path, dtype: str, **more: Any) -> LLM:
    return LLM(str(folder), device="cpu", dtype=dtype, reproducible=True, max_model_len=640, **more)


@pytest.fixture(scope="module", params=["full attention", "many heads", "qk norms"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    match request.param:
        case "many heads":
            save_small_model(path, hidden_size=64, num_attention_heads=8, num_key_value_heads=1)
        case "qk norms":
            save_small_model(path, lambda **fields: Qwen3ForCausalLM(Qwen3Config(**fields)), head_dim=16)
        case _:
            save_small_model(path)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_how_tokens_are_computed(folder: Path, dtype: str) -> None:
    with opened(folder, dtype) as llm:
        alone = [ask(llm, [prompt])[0] for prompt in PROMPTS]
        assert [ask(llm, [prompt])[0] for prompt in PROMPTS] == alone, "prefix hits"
        assert ask(llm, PROMPTS) == alone, "a batch"
        for prompt, (tokens, found) in zip(PROMPTS, alone, strict=True):
            for place in (1, 7, COUNT - 1):
                longer = [*prompt, *tokens[:place]]
                ((_, (first, *_)),) = ask(llm, [longer], seed=len(prompt), max_tokens=1)
                assert first == found[place], "the last token of a prompt"
    for more in (
        {"chunked_prefill_size": 16},
        {"chunked_prefill_size": 48},
        {"disable_radix_cache": True},
        {"page_size": 8, "kv_pool_tokens": 1000},
        {"speculative": "ngram"},
    ):
        with opened(folder, dtype, **more) as llm:
            assert ask(llm, PROMPTS) == alone, more


async def test_bits_do_not_depend_on_mode_and_worker(small: SmallModel) -> None:
    with opened(small.folder, "float32") as llm:
        alone = [ask(llm, [prompt])[0] for prompt in PROMPTS]
    for mode in (Mode.MIXED, Mode.DISAGG):
        async with (
            local_cluster(small, mode, attention_backend="uniform") as cluster,
            httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
        ):
            for prompt, (tokens, found) in zip(PROMPTS, alone, strict=True):
                body = ASKED | {"prompt": prompt, "seed": len(prompt), "return_token_ids": True}
                answer = (await client.post("/v1/completions", json=body)).json()["choices"][0]
                assert answer["token_ids"] == tokens
                chosen = [each[token] for token, each in zip(tokens, found, strict=True)]
                assert answer["logprobs"]["token_logprobs"] == chosen


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"quantization": "fp8"}, "quantized"),
        ({"enable_lora": True}, "LoRA"),
    ],
)
def test_what_depends_on_the_batch_is_refused(
    small: SmallModel, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises((PlanError, ValueError), match=words):
        LLM(str(small.folder), reproducible=True, max_model_len=640, **{"device": "cpu", **settings})


def test_what_is_not_written_is_refused_by_name(small: SmallModel) -> None:
    spec = ModelSpec.from_folder(small.folder)
    assert obstacles(RouterConfig(model="small"), spec, "cpu", 1) == []
    (gpu,) = obstacles(RouterConfig(model="small"), spec, "cuda", 1)
    assert "kernels of GPUs" in gpu
    windows = replace(spec, attention=replace(spec.attention, windows=(None, 50)))
    (window,) = obstacles(RouterConfig(model="small"), windows, "cpu", 1)
    assert "windows" in window
    (ranks,) = obstacles(RouterConfig(model="small"), spec, "cpu", 2)
    assert "ranks" in ranks
