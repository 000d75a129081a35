"""`--logprobs-mode processed`: answers report the distribution that their tokens were sampled from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton import LLM, SamplingParams
from tests.faults.support.small_model import SmallModel

PROMPT = [7, 9, 11, 7, 9, 11, 7, 9]
SAMPLED = SamplingParams(
    temperature=0.6,
    top_k=6,
    top_p=0.9,
    repetition_penalty=1.2,
    seed=3,
    max_tokens=16,
    logprobs=3,
    ignore_eos=True,
)


def llm(small: SmallModel, **more: Any) -> LLM:
    return LLM(str(small.folder), device="cpu", dtype="float32", kv_pool_tokens=2048, **more)


@torch.no_grad()
def expected(model: Any, before: list[int]) -> torch.Tensor:
    seen = torch.tensor([before])
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(0.6),
            TopKLogitsWarper(6),
            TopPLogitsWarper(0.9),
        ]
    )
    return processors(seen, model(seen).logits[:, -1].float())[0].log_softmax(-1)


@pytest.mark.parametrize("speculation", [{}, {"speculative": "ngram"}], ids=["alone", "with drafts"])
@pytest.mark.parametrize("name", ["processed", "processed_logprobs"])
def test_they_are_those_of_transformers_processors(
    small: SmallModel, speculation: dict[str, Any], name: str
) -> None:
    with llm(small, logprobs_mode=name, **speculation) as processed:
        [answer] = processed.generate([{"prompt_token_ids": PROMPT}], SAMPLED, progress=False)
    output = answer.outputs[0]
    assert output.logprobs is not None
    for place, (token, reported) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        want = expected(small.model, [*PROMPT, *output.token_ids[:place]])
        for one, report in reported.items():
            assert report.logprob == pytest.approx(max(float(want[one]), -9999.0), abs=1e-4)
        assert reported[token].logprob > -9999.0


def test_the_mode_changes_no_token(small: SmallModel) -> None:
    answers = []
    for name in ("raw", "processed"):
        with llm(small, logprobs_mode=name) as one:
            answers += one.generate([{"prompt_token_ids": PROMPT}], SAMPLED, progress=False)
    raw, processed = answers
    assert raw.outputs[0].token_ids == processed.outputs[0].token_ids
    assert raw.outputs[0].logprobs != processed.outputs[0].logprobs


@pytest.mark.parametrize("name", ["raw_logits", "processed_logits"])
def test_logits_are_refused_by_name(small: SmallModel, name: str) -> None:
    with pytest.raises(ValueError, match="answers have log-probabilities, not logits; use raw or processed"):
        llm(small, logprobs_mode=name)
