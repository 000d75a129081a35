"""Log-probabilities of the distribution that a token is sampled from, as transformers' processors have it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.core.plan import Chunk, ChunkKind
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.sampling.logprobs import EXCLUDED
from engine.sampling.sampler import Sampler

VOCAB = 32
PROMPT = [1, 2, 2, 3]
OUTPUT = [4, 4, 9]


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=8,
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 5, VOCAB])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        top_p=draw(st.sampled_from([0.3, 0.8, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.4])),
        seed=draw(st.integers(0, 1000)),
        logprobs=4,
        logprob_token_ids=draw(st.sampled_from([(), (7, 30)])),
    )


def expected(logits: torch.Tensor, sampling: SamplingParams, output: list[int]) -> torch.Tensor:
    """Log-probabilities of one row [vocab]; those of excluded tokens are -inf."""
    seen = torch.tensor([[*PROMPT, *output]])
    scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(seen, logits[None].clone())
    for token in set(output):  # OpenAI's, which transformers lacks
        scores[0, token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    if sampling.temperature:
        warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
        if sampling.top_k:
            warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.min_p:
            warpers.append(MinPLogitsWarper(sampling.min_p))
        if sampling.top_p < 1.0:
            warpers.append(TopPLogitsWarper(sampling.top_p))
        scores = warpers(seen, scores)
    return scores[0].log_softmax(-1)


def chunk_of(sampling: SamplingParams, slot: int, output: list[int]) -> Chunk:
    request = Request(id=slot, prompt=PROMPT, sampling=sampling, output=output, slot=slot)
    return Chunk(request, slot, request.num_tokens - 1, 1, len(output))


def processed_sampler() -> Sampler:
    cpu = torch.device("cpu")
    return Sampler(vocab_size=VOCAB, eos_token_ids=[5], max_requests=8, device=cpu, processed_logprobs=True)


def rows_agree(logits: torch.Tensor, chunks: list[Chunk], outputs: list[list[int]]) -> None:
    sampled = processed_sampler().sample(logits.clone(), chunks)
    assert sampled.logprobs is not None
    reports = sampled.logprobs.to_tokens([chunk.request.sampling for chunk in chunks])
    for row, (chunk, report) in enumerate(zip(chunks, reports, strict=True)):
        sampling, token = chunk.request.sampling, int(sampled.tokens[row])
        want = expected(logits[row], sampling, outputs[row])
        assert report.logprob > EXCLUDED, "an excluded token was sampled"
        torch.testing.assert_close(report.logprob, float(want[token]), rtol=0, atol=1e-5)
        assert report.rank == 1 + int((want > want[token]).sum())
        for alternative, logprob in report.top:
            clamped = max(float(want[alternative]), EXCLUDED)
            torch.testing.assert_close(logprob, clamped, rtol=0, atol=1e-5)


@given(wanted=st.lists(samplings(), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_they_are_those_of_the_processors_of_transformers(wanted: list[SamplingParams], seed: int) -> None:
    logits = torch.randn(len(wanted), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    outputs = [OUTPUT[: slot % 4] for slot in range(len(wanted))]
    chunks = [chunk_of(sampling, slot, outputs[slot]) for slot, sampling in enumerate(wanted)]
    rows_agree(logits, chunks, outputs)


@given(sampling=samplings(), seed=st.integers(0, 1000))
def test_rows_after_drafts_have_those_after_the_drafted_tokens(sampling: SamplingParams, seed: int) -> None:
    drafts = (6, 6, 11)
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    request = Request(id=1, prompt=PROMPT, sampling=sampling, output=list(OUTPUT), slot=0)
    first = request.num_tokens - 1
    verify = Chunk(request, 0, first, 4, len(OUTPUT), kind=ChunkKind.VERIFY, draft=drafts)
    rows_agree(logits, list(verify.rows()), [[*OUTPUT, *drafts[:count]] for count in range(4)])


def test_raw_ones_are_of_the_model_alone() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    sampling = SamplingParams(max_tokens=8, temperature=0.5, top_k=2, repetition_penalty=1.5, logprobs=3)
    cpu = torch.device("cpu")
    sampler = Sampler(vocab_size=VOCAB, eos_token_ids=[5], max_requests=8, device=cpu)
    sampled = sampler.sample(logits.clone(), [chunk_of(sampling, 0, OUTPUT)])
    assert sampled.logprobs is not None
    (report,) = sampled.logprobs.to_tokens([sampling])
    want = logits[0].log_softmax(-1)
    torch.testing.assert_close(report.logprob, float(want[int(sampled.tokens[0])]), rtol=0, atol=1e-6)
