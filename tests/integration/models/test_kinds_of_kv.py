"""Every kind of KV in 8 bits, with structured output and priorities: the tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DeepseekV3ForCausalLM,
    DeepseekV32ForCausalLM,
    DynamicCache,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention

from engine.config import Policy
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.faults.support.small_model import Question, SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import KINDS, chosen
from tests.unit.engine.grammar.test_structured_output import GRAMMARS, reference
from tests.unit.tiny import make_config

ANSWER = 16


def rounded(values: Tensor) -> Tensor:
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def attend_to_rounded(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any
) -> Any:
    return sdpa_attention_forward(module, query, rounded(key), rounded(value), *args, **options)


LATENT: dict[type, Any] = {
    DeepseekV3ForCausalLM: DeepseekV3Attention,
    DeepseekV32ForCausalLM: DeepseekV32Attention,
}
AttentionInterface.register("fp8_kv_unscaled", attend_to_rounded)
AttentionMaskInterface.register("fp8_kv_unscaled", sdpa_mask)


@pytest.fixture(scope="module", params=[*KINDS, chosen], ids=lambda kind: kind.__name__)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"), request.param)


def engine(folder: Path, **changes: Any) -> Engine:
    return Engine(
        make_config(folder, **{"num_pages": 512, "max_model_len": 256, "chunk_budget": 8} | changes)
    )


def questions(small: SmallModel) -> list[Question]:
    return [small.question(length, length=length, max_tokens=ANSWER) for length in (5, 33, 60)]


def requests(
    asked: list[Question], first: int = 0, priority: int = 0, logprobs: int | None = None
) -> list[Request]:
    sampling = SamplingParams(max_tokens=ANSWER, ignore_eos=True, logprobs=logprobs)
    numbered = enumerate(asked, first)
    return [Request(id, list(one.prompt), sampling, priority=priority) for id, one in numbered]


def answers(served: Engine, submitted: list[Request]) -> list[list[int]]:
    return [tokens for tokens, _ in scored_answers(served, submitted)]


def scored_answers(served: Engine, submitted: list[Request]) -> list[tuple[list[int], list[float]]]:
    """Tokens, and their log-probabilities if the requests ask for them."""
    scores: dict[int, list[float]] = {request.id: [] for request in submitted}
    for request in submitted:
        served.submit(request)
    while served.has_work:
        for token in served.step().tokens:
            if token.logprobs is not None:
                scores[token.request.id].append(token.logprobs.logprob)
    served.check_pages()
    return [(request.output, scores[request.id]) for request in submitted]


def test_8_bit_kv_is_rounded_as_it_is_stored_and_nothing_else(
    small: SmallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the chunks, and from the cache. Latents are rounded, not the keys that they expand to."""
    asked = questions(small)
    latent = LATENT.get(type(small.model))
    if latent is not None:
        expand, indexed = latent.expand_kv, DynamicCache.update_indexer
        monkeypatch.setattr(latent, "expand_kv", lambda self, *both: expand(self, *map(rounded, both)))
        monkeypatch.setattr(
            DynamicCache, "update_indexer", lambda self, keys, layer: indexed(self, rounded(keys), layer)
        )
    else:
        monkeypatch.setattr(small.model.config, "_attn_implementation", "fp8_kv_unscaled")
    # Not with `generate`, whose states are computed in another order from token to token.
    expected = [greedy(small, question.prompt) for question in asked]
    scores = [
        scored(small, question.prompt, tokens) for question, tokens in zip(asked, expected, strict=True)
    ]
    monkeypatch.undo()
    exact = [scored(small, question.prompt, tokens) for question, tokens in zip(asked, expected, strict=True)]
    for chunk, page in ((8, 4), (None, 16)):
        served = engine(small.folder, chunk_budget=chunk, page_size=page, fp8_kv=True)
        for first in (0, 10):
            ours = scored_answers(served, requests(asked, first, logprobs=0))
            assert [tokens for tokens, _ in ours] == expected
            for (_, ours_each), rounded_each, exact_each in zip(ours, scores, exact, strict=True):
                error = (torch.tensor(ours_each) - rounded_each).abs().max()
                assert error < (exact_each - rounded_each).abs().max() / 5
        assert served.stats().cache_hit_tokens > 0


@torch.inference_mode()
def greedy(small: SmallModel, prompt: tuple[int, ...]) -> list[int]:
    tokens = list(prompt)
    for _ in range(ANSWER):
        tokens.append(int(small.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@torch.inference_mode()
def scored(small: SmallModel, prompt: tuple[int, ...], answer: list[int]) -> Tensor:
    """The log-probability of each token of an answer."""
    logits = small.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(answer)), answer]


def test_structured_output_is_that_of_a_reference_loop(small: SmallModel) -> None:
    prompts, grammars = [question.prompt for question in questions(small)], GRAMMARS[1:]
    expected = [reference(small, prompt, grammar) for prompt, grammar in zip(prompts, grammars, strict=True)]
    served = engine(small.folder, overlap=True)
    for first in (0, 10):
        asked = [
            Request(first + i, list(prompt), SamplingParams(max_tokens=60, grammar=grammar))
            for i, (prompt, grammar) in enumerate(zip(prompts, grammars, strict=True))
        ]
        assert answers(served, asked) == expected
    assert served.stats().cache_hit_tokens > 0


def test_what_an_urgent_request_preempts_is_answered_as_if_it_were_alone(small: SmallModel) -> None:
    by_priority = {"policy": Policy.PRIORITY, "priority_preemption_threshold": 0}
    served = engine(small.folder, chunk_budget=64, max_running_requests=2, **by_priority)
    asked = questions(small)
    ordinary, urgent = requests(asked[1:]), requests(asked[:1], 10, priority=1)
    for request in ordinary:
        served.submit(request)
    while min(len(request.output) for request in ordinary) < 3:
        served.step()
    assert answers(served, urgent) == [small.answer(asked[0])]
    assert served.stats().preemptions > 0
    assert [request.output for request in ordinary] == [small.answer(question) for question in asked[1:]]
