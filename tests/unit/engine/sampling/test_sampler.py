"""The sampler as requests meet it: mixed batches, penalties, early ends and log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from engine.core.plan import Chunk
from engine.core.request import PENDING, Request
from engine.core.sampling_params import SamplingParams
from engine.sampling.sampler import Sampler

VOCAB = 32
EOS = 5
GREEDY = SamplingParams(max_tokens=8)


def make_sampler() -> Sampler:
    return Sampler(vocab_size=VOCAB, eos_token_ids=[EOS], max_requests=8, device=torch.device("cpu"))


def sampling_chunk(
    sampling: SamplingParams, *, slot: int = 0, output: tuple[int, ...] = (), id: int = 1
) -> Chunk:
    request = Request(id=id, prompt=[1, 2, 2, 3], sampling=sampling, output=list(output), slot=slot)
    return Chunk(request, request.slot, request.num_tokens - 1, 1, len(output))


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_takes_the_most_likely() -> None:
    logits = random_logits(3)
    chunks = [sampling_chunk(GREEDY, slot=i) for i in range(3)]
    assert make_sampler().sample(logits.clone(), chunks).tokens.tolist() == logits.argmax(-1).tolist()


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=8,
        min_tokens=draw(st.sampled_from([0, 3])),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
        top_k=draw(st.sampled_from([0, 5])),
        top_p=draw(st.sampled_from([0.6, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.4])),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        logit_bias=draw(st.sampled_from([(), ((4, 1.5), (31, -100.0))])),
    )


@given(wanted=st.lists(samplings(), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_row_gets_the_same_token_in_any_company(wanted: list[SamplingParams], seed: int) -> None:
    logits = random_logits(len(wanted), seed)
    chunks = [sampling_chunk(s, slot=i, id=i, output=(4, 4, 9)[: i % 4]) for i, s in enumerate(wanted)]
    together = make_sampler().sample(logits.clone(), chunks).tokens.tolist()
    alone = [int(make_sampler().sample(logits[i : i + 1].clone(), [c]).tokens) for i, c in enumerate(chunks)]
    assert together == alone


def test_the_same_seed_and_position_draw_the_same_token_wherever_the_prompt_ends() -> None:
    """A retry resubmits what was streamed: the split between prompt and output must not matter."""
    logits = random_logits(1)
    hot = SamplingParams(max_tokens=8, temperature=5.0, seed=11)
    streamed = Request(id=1, prompt=[1, 2], sampling=hot, output=[3, 4], slot=0)
    retried = Request(id=2, prompt=[1, 2, 3, 4], sampling=hot, slot=1)
    tokens = [
        int(make_sampler().sample(logits.clone(), [Chunk(r, r.slot, 3, 1, len(r.output))]).tokens)
        for r in (streamed, retried)
    ]
    assert tokens[0] == tokens[1]


def test_other_positions_draw_other_tokens() -> None:
    hot = SamplingParams(max_tokens=64, temperature=50.0, seed=11)
    sampler = make_sampler()
    logits = random_logits(1)
    drawn = {
        int(sampler.sample(logits.clone(), [sampling_chunk(hot, output=(7,) * n)]).tokens) for n in range(20)
    }
    assert len(drawn) > 8


def brute_force_penalties(
    logits: list[float], sampling: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    penalised = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            r = sampling.repetition_penalty
            logit = logit / r if logit > 0 else logit * r
        logit -= sampling.frequency_penalty * output.count(token)
        logit -= sampling.presence_penalty * (token in output)
        penalised.append(logit)
    return penalised


def kept(logits: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """The tokens of one row that may be drawn, from the definitions."""
    probabilities = logits.double().softmax(-1)
    order = probabilities.argsort(descending=True).tolist()
    before, allowed = 0.0, set()
    for place, token in enumerate(order):
        within_k = not top_k or place < top_k
        if within_k and before < top_p and probabilities[token] >= min_p * probabilities[order[0]]:
            allowed.add(token)
        before += float(probabilities[token])
    return allowed


@pytest.mark.parametrize("setting", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}])
def test_each_truncation_alone_draws_all_tokens_of_its_cut_and_no_other(setting: dict[str, Any]) -> None:
    logits = random_logits(1, seed=3)
    drawn = set()
    for seed in range(400):
        sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=seed, **setting)
        drawn.add(int(make_sampler().sample(logits.clone(), [sampling_chunk(sampling)]).tokens))

    assert drawn == kept(logits[0], **setting)


PENALTIES = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"repetition_penalty": 0.6, "presence_penalty": -1.0, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("penalties", PENALTIES)
def test_penalties_follow_every_token_that_is_sampled(penalties: dict[str, Any]) -> None:
    """Outputs stay pending, as when steps overlap: the host never tells what was sampled before."""
    sampler = make_sampler()
    chunk = sampling_chunk(SamplingParams(max_tokens=40, **penalties), slot=3)
    request, said = chunk.request, []
    for step in range(25):
        logits = random_logits(1, seed=step % 3)
        expected = brute_force_penalties(logits[0].tolist(), request.sampling, list(request.prompt), said)
        token = int(sampler.sample(logits.clone(), [Chunk(request, request.slot, 3 + step, 1, step)]).tokens)
        assert token == expected.index(max(expected))
        said.append(token)
        request.output.append(PENDING)


def test_a_request_that_has_ended_meanwhile_touches_no_other_slot() -> None:
    """A step in flight samples for the requests it was planned with; some may have ended since."""
    sampler = make_sampler()
    penalised = SamplingParams(max_tokens=40, repetition_penalty=4.0)
    other, ended = sampling_chunk(penalised, slot=7, id=1), sampling_chunk(penalised, slot=2, id=2)
    logits = random_logits(2, seed=5)
    said = sampler.sample(logits.clone(), [other, ended]).tokens.tolist()
    ended.request.slot = -1  # of 8 slots, this would be number 7
    for chunk, token in zip((other, ended), said, strict=True):
        chunk.request.output.append(token)
    chunks = [Chunk(chunk.request, chunk.slot, 4, 1, 1) for chunk in (other, ended)]
    logits = logits[0].repeat(2, 1)
    expected = [brute_force_penalties(logits[0].tolist(), penalised, [1, 2, 2, 3], [token]) for token in said]
    assert expected[0] != expected[1]
    tokens = sampler.sample(logits, chunks).tokens.tolist()
    assert tokens == [scores.index(max(scores)) for scores in expected]


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = random_logits(1)
    chunk = sampling_chunk(SamplingParams(max_tokens=8, repetition_penalty=2.5), output=(7, 9))
    tokens = torch.tensor([[1, 2, 2, 3, 7, 9]])
    expected = RepetitionPenaltyLogitsProcessor(2.5)(tokens, logits.clone()).argmax()
    assert int(make_sampler().sample(logits, [chunk]).tokens) == int(expected)


def test_biases_are_added_before_penalties() -> None:
    """As transformers' SequenceBias and RepetitionPenalty processors do, in its order."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 1], logits[0, 9] = -1.0, 1.4
    biased = SamplingParams(max_tokens=8, repetition_penalty=2.0, logit_bias=((1, 4.0), (9, 0.05)))
    assert int(make_sampler().sample(logits.clone(), [sampling_chunk(biased)]).tokens) == 1  # (-1 + 4) / 2
    forbidden = replace(biased, logit_bias=((1, 4.0), (9, 0.2)))
    assert int(make_sampler().sample(logits.clone(), [sampling_chunk(forbidden)]).tokens) == 9


def test_top_k_of_one_takes_the_first_of_equally_likely_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = logits[0, 20] = 1.0
    for seed in range(20):
        one = SamplingParams(max_tokens=8, temperature=2.0, top_k=1, seed=seed)
        assert int(make_sampler().sample(logits.clone(), [sampling_chunk(one)]).tokens) == 9


def test_a_warm_up_leaves_nothing_behind() -> None:
    """Its requests said tokens in every slot."""
    sampler = make_sampler()
    penalised = SamplingParams(max_tokens=8, presence_penalty=9.0)
    logits = random_logits(8)
    expected = make_sampler().sample(
        logits.clone(), [sampling_chunk(penalised, slot=i, id=i) for i in range(8)]
    )
    sampler.profile_run(random_logits(8, seed=1))
    got = sampler.sample(logits.clone(), [sampling_chunk(penalised, slot=i, id=i) for i in range(8)])
    assert got.tokens.tolist() == expected.tokens.tolist()


def test_a_slot_forgets_its_last_request() -> None:
    sampler = make_sampler()
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 10] = 2.0, 1.5
    penalised = SamplingParams(max_tokens=8, presence_penalty=1.0)
    assert int(sampler.sample(logits.clone(), [sampling_chunk(penalised, id=1, output=(9,))]).tokens) == 10
    assert int(sampler.sample(logits.clone(), [sampling_chunk(penalised, id=2)]).tokens) == 9


def test_a_request_that_comes_back_is_counted_with_what_it_said_before() -> None:
    """It was preempted, or another worker said the first tokens."""
    sampler = make_sampler()
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 10] = 2.0, 1.5
    penalised = SamplingParams(max_tokens=8, frequency_penalty=0.3)
    once = sampling_chunk(penalised, output=(9,))
    assert int(sampler.sample(logits.clone(), [once]).tokens) == 9
    sampler.sample(logits.clone(), [sampling_chunk(penalised, id=2, output=(1, 2))])
    back = sampling_chunk(penalised, output=(9, 9))
    assert int(sampler.sample(logits.clone(), [back]).tokens) == 10


def test_no_request_ends_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 8], logits[0, 4] = 3.0, 2.0, 1.0
    patient = SamplingParams(max_tokens=8, min_tokens=2, stop_token_ids=(8, VOCAB + 5))

    def token(sampling: SamplingParams, *output: int) -> int:
        return int(make_sampler().sample(logits.clone(), [sampling_chunk(sampling, output=output)]).tokens)

    assert token(patient) == 4
    assert token(patient, 0) == 4
    assert token(patient, 0, 0) == EOS
    assert token(replace(patient, ignore_eos=True)) == EOS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_of_the_untouched_distribution(temperature: float) -> None:
    logits = random_logits(3)
    expected = logits.log_softmax(-1)
    wanted = [0, None, 4]
    chunks = [
        sampling_chunk(
            SamplingParams(
                max_tokens=8, temperature=temperature, presence_penalty=2.0, min_tokens=4, logprobs=k
            ),
            slot=i,
            id=i,
            output=(int(logits[i].argmax()),),
        )
        for i, k in enumerate(wanted)
    ]
    sampled = make_sampler().sample(logits.clone(), chunks)
    assert sampled.logprobs is not None
    first, last = sampled.logprobs.to_tokens([SamplingParams(max_tokens=1, logprobs=k) for k in (0, 4)])
    for row, got in ((0, first), (2, last)):
        token = int(sampled.tokens[row])
        assert got.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        assert got.rank == 1 + int((expected[row] > expected[row, token]).sum())
    assert first.top == ()
    best = expected[2].topk(4)
    assert [token for token, _ in last.top] == best.indices.tolist()
    assert [value for _, value in last.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_reported_for_their_row_only(bad: float) -> None:
    logits = random_logits(3)
    logits[1, 17] = bad
    chunks = [
        sampling_chunk(SamplingParams(max_tokens=8, temperature=t), slot=i)
        for i, t in enumerate((0.0, 1.0, 1.0))
    ]
    sampled = make_sampler().sample(logits, chunks)
    assert sampled.finite.tolist() == [True, False, True]
    assert 0 <= int(sampled.tokens[1]) < VOCAB
