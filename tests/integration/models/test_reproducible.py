"""With --reproducible, log-probabilities have the same bits however the tokens are computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton import LLM, LoRARequest, SamplingParams
from engine.model_config.model_spec import ModelSpec
from router.cluster.worker_config.machine import PlanError
from router.cluster.worker_config.reproducible import obstacles
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import latents, states
from tests.integration.models.reproducible_kinds import KINDS
from tests.unit.engine.adapters.peft_oracle import save_adapter

PROMPTS = [[2 + (7 * k + i * i) % 350 for i in range(20 + 61 * k)] for k in range(6)]
COUNT = 20
ASKED: dict[str, Any] = {"temperature": 1.0, "max_tokens": COUNT, "logprobs": 20, "ignore_eos": True}
Bits = list[dict[int, float]]
"""Log-probabilities of each token and of the 20 most likely ones."""


def bits(output: Any) -> Bits:
    return [{token: one.logprob for token, one in each.items()} for each in output.logprobs]


def ask(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    *,
    lora: Sequence[LoRARequest | None] | None = None,
    **more: Any,
) -> list[tuple[list[int], Bits]]:
    params = [SamplingParams(**ASKED | {"seed": len(prompt)} | more) for prompt in prompts]
    given: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    answers = llm.generate(given, params, lora_request=lora, progress=False)
    return [(answer.outputs[0].token_ids, bits(answer.outputs[0])) for answer in answers]


def opened(folder: Path, dtype: str, **more: Any) -> LLM:
    return LLM(str(folder), device="cpu", dtype=dtype, reproducible=True, max_model_len=640, **more)


ALWAYS = {"full attention", "windows", "experts", "4 bits"}
"""Kinds that are computed in every run of the tests; the others in thorough ones."""


@pytest.fixture(
    scope="module",
    params=[kind if kind in ALWAYS else pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    KINDS[request.param](path)
    return path


WAYS: list[dict[str, Any]] = [
    {"chunked_prefill_size": 16},
    {"chunked_prefill_size": 48},
    {"disable_radix_cache": True},
    {"page_size": 8},
    {"speculative": "ngram"},
]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
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
    for more in WAYS:
        with opened(folder, dtype, **more) as llm:
            assert ask(llm, PROMPTS) == alone, more


@pytest.mark.parametrize("kind", ["full attention", "windows"])
def test_bits_do_not_depend_on_preemptions(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without foresight, admission lets in what will not fit.
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    KINDS[kind](tmp_path)
    long = {"max_tokens": 200}
    with opened(tmp_path, "float32") as llm:
        alone = [ask(llm, [prompt], **long)[0] for prompt in PROMPTS]
    with opened(tmp_path, "float32", page_size=8, kv_pool_tokens=700) as llm:
        assert ask(llm, PROMPTS, **long) == alone
        assert llm._engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_adapters_do_not_depend_on_the_batch(small: SmallModel, tmp_path: Path, dtype: str) -> None:
    """One of an odd rank, some requests without an adapter."""
    saved = [save_adapter(small.folder, tmp_path / f"{rank}", rank, r=rank) for rank in (3, 8)]
    each = [None, *(LoRARequest(path.name, 1, str(path)) for path in saved)] * 2
    for more in ({}, {"chunked_prefill_size": 48}, {"page_size": 8}):
        with opened(small.folder, dtype, enable_lora=True, **more) as llm:
            alone = [ask(llm, [prompt], lora=[lora])[0] for prompt, lora in zip(PROMPTS, each, strict=True)]
            assert ask(llm, PROMPTS, lora=each) == alone
            plain = ask(llm, PROMPTS)
            assert [one == other for one, other in zip(plain, alone, strict=True)] == [
                lora is None for lora in each
            ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_what_depends_on_the_batch_is_refused(
    small: SmallModel, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises((PlanError, ValueError), match=words):
        LLM(str(small.folder), reproducible=True, max_model_len=640, **{"device": "cpu", **settings})


def test_what_is_not_written_is_refused_by_name(small: SmallModel, tmp_path: Path) -> None:
    spec = ModelSpec.from_folder(small.folder)
    assert obstacles(spec, "cpu", 1) == []
    assert obstacles(spec, "cuda", 1) == []
    (ranks,) = obstacles(spec, "cpu", 2)
    assert "ranks" in ranks
    for kind, words in ((latents, "latent attention"), (states, "recurrent layers")):
        save_small_model(tmp_path / words, kind)
        (why,) = obstacles(ModelSpec.from_folder(tmp_path / words), "cpu", 1)
        assert words in why
