"""A read gives the log-probabilities of labels after its prompt, and no token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.config import Batching
from engine.core.read import LabelLogprobs, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import UnservableRequest
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference, reference_labels
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

LABELS = (5, 90, 17)


def read_of(id: int, prompt: list[int], labels: tuple[int, ...] = LABELS) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=0), read=Read(labels))


def run(engine: Engine, *requests: Request) -> dict[int, LabelLogprobs]:
    """What was read, by request. Others are computed to their end."""
    found: dict[int, Any] = {}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        output = engine.step()
        found |= {request.id: numbers for request, numbers in output.outputs}
        assert {request.id for request in output.read} <= found.keys()
        assert not any(token.request.read for token in output.tokens)
        assert not output.failed
        engine.check_pages()
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total
    return found


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-llama")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> LlamaForCausalLM:
    return save_tiny_llama(folder)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("chunk", [2, 7, 16])
def test_many_reads_of_one_state_beside_answers_give_the_reference(
    chunk: int, batching: Batching, overlap: bool
) -> None:
    engine = make_engine(chunk_budget=chunk, batching=batching, overlap=overlap)
    state = list(range(1, 23))
    reads = [read_of(id, [*state, 30 + id, 40]) for id in range(5)]
    answers = [make_request(10 + id, [*state, 50 + id], 6, ignore_eos=True) for id in range(2)]
    found = run(engine, answers[0], *reads, answers[1], read_of(20, [7]))
    for read in reads:
        assert found[read.id] == reference_labels(read.prompt, LABELS)
    assert found[20] == reference_labels([7], LABELS)
    for answer in answers:
        assert answer.output == reference(answer.prompt, 6, ignore_eos=True)
    again = run(engine, read_of(30, reads[0].prompt[:]))  # all but its last token is cached
    assert again[30] == found[0]


def test_a_state_is_computed_once_for_reads_that_come_together() -> None:
    engine = make_engine(chunk_budget=64)
    state = list(range(1, 41))
    reads = [read_of(id, [*state, 50 + id, 60]) for id in range(5)]
    run(engine, *reads)
    computed = sum(length for step in engine.runner.steps for _, _, length in step)  # type: ignore[attr-defined]
    assert computed <= len(state) + 5 * (2 + 4)


@pytest.mark.parametrize("chunk", [16, 1000])
def test_preempted_reads_are_read_later(chunk: int) -> None:
    engine = make_engine(num_pages=16, chunk_budget=chunk, radix_cache=False)
    answers = [make_request(id, [1, 2 + id, 3], 24, ignore_eos=True) for id in range(2)]
    reads = [read_of(10 + id, [60 + id, *range(1, 30)]) for id in range(4)]
    found = run(engine, *answers, *reads)
    for read in reads:
        assert found[read.id] == reference_labels(read.prompt, LABELS)


def test_a_read_without_labels_leaves_its_prompt_in_the_cache() -> None:
    engine = make_engine()
    prompt = list(range(1, 17))
    assert run(engine, read_of(0, prompt, ()))[0] == LabelLogprobs(16, [], [], 0.0)
    later = make_request(1, [*prompt, 9], 1)
    run(engine, later)
    assert later.num_cached == 16


@pytest.mark.parametrize("labels", [(VOCAB,), (-1,), tuple(range(90)) * 6])
def test_impossible_labels_are_refused(labels: tuple[int, ...]) -> None:
    with pytest.raises(UnservableRequest, match="labels"):
        make_engine().submit(read_of(0, [1, 2], labels))


def test_a_read_has_no_answer() -> None:
    with pytest.raises(UnservableRequest, match="neither an answer"):
        make_engine().submit(Request(0, [1], SamplingParams(max_tokens=1), read=Read(LABELS)))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [2, 5, 16, None])
def test_labels_are_transformers_last_row(
    folder: Path, oracle: LlamaForCausalLM, chunk: int | None, overlap: bool
) -> None:
    prompts = [prompt_of(40, 1) + prompt_of(9, seed) for seed in (2, 3, 4)] + [prompt_of(1), prompt_of(23)]
    engine = Engine(make_config(folder, chunk_budget=chunk, overlap=overlap))
    found = run(engine, *(read_of(id, prompt) for id, prompt in enumerate(prompts)))
    with torch.no_grad():
        for id, prompt in enumerate(prompts):
            row = oracle(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
            expected = row[list(LABELS)]
            torch.testing.assert_close(torch.tensor(found[id].logprobs), expected, rtol=1e-5, atol=2e-5)
            assert math.isclose(found[id].mass, float(expected.exp().sum()), rel_tol=1e-4)
