"""The runner against transformers, one request and many, whole prompts and chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.core.plan import Chunk, StepPlan
from engine.core.request import PENDING, Request
from engine.device.memory import OutOfDeviceMemory
from engine.errors import NotFinite
from engine.executor.runner import ModelRunner
from tests.unit.tiny import VOCAB, chunk_of, make_config, make_request, save_tiny_llama, step


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-llama")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> LlamaForCausalLM:
    return save_tiny_llama(folder)


@pytest.fixture
def runner(folder: Path, oracle: LlamaForCausalLM) -> ModelRunner:
    return ModelRunner(make_config(folder))


def expected(oracle: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, oracle(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return tokens[0, len(prompt) :].tolist()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunks", [[23], [7, 16], [8, 8, 7], [1] * 23, [22, 1]])
def test_greedy_output_equals_transformers_however_the_prompt_is_cut(
    folder: Path, oracle: LlamaForCausalLM, chunks: list[int], page_size: int
) -> None:
    runner = ModelRunner(make_config(folder, page_size=page_size))
    prompt = prompt_of(23)
    request = make_request(0, prompt, [page * 7 % 61 for page in range(-(-40 // page_size))])
    for length in chunks:
        step(runner, chunk_of(request, length))
    for _ in range(11):
        step(runner, chunk_of(request, 1))
    assert request.output == expected(oracle, prompt, 12)


def test_a_mixed_batch_computes_what_each_request_computes_alone(
    runner: ModelRunner, oracle: LlamaForCausalLM
) -> None:
    lengths = [30, 3, 12, 1]
    requests = [
        make_request(i, prompt_of(length, seed=i), range(i * 12, i * 12 + 12))
        for i, length in enumerate(lengths)
    ]
    long, short, middle, single = requests
    step(runner, chunk_of(long, 10), chunk_of(short, 3))
    step(runner, chunk_of(middle, 12), chunk_of(long, 16), chunk_of(short, 1), chunk_of(single, 1))
    for _ in range(8):
        step(runner, *(chunk_of(r, r.num_pending) for r in requests))
    for request in requests:
        assert request.output == expected(oracle, list(request.prompt), len(request.output))
        assert len(request.output) >= 8


def test_a_pending_token_is_read_on_the_device(runner: ModelRunner, oracle: LlamaForCausalLM) -> None:
    request = make_request(3, prompt_of(9), range(8))
    flights = []
    for _ in range(5):
        plan = StepPlan(chunks=[chunk_of(request, request.num_pending)])
        flights.append(runner.launch(runner.prepare(plan)))
        while flights[-1].proceed():
            pass
        request.output.append(PENDING)
    tokens = [flight.result().tokens[0] for flight in flights]
    assert tokens == expected(oracle, prompt_of(9), 5)


def test_an_inner_chunk_samples_nothing(runner: ModelRunner) -> None:
    request = make_request(0, prompt_of(9), range(8))
    assert runner.launch(runner.prepare(StepPlan(chunks=[chunk_of(request, 8)]))).result().tokens == []


def test_logits_that_are_not_finite_fail_that_request_alone(
    runner: ModelRunner, oracle: LlamaForCausalLM
) -> None:
    poisoned, healthy = make_request(0, prompt_of(5), [0, 1, 2]), make_request(1, prompt_of(9), [3, 4, 5])
    step(runner, chunk_of(poisoned, 5), chunk_of(healthy, 9))
    runner.kv.tensor[0] = torch.nan
    plan = StepPlan(chunks=[chunk_of(poisoned, 1), chunk_of(healthy, 1)])
    result = runner.launch(runner.prepare(plan)).result()
    assert {row: type(error) for row, error in result.errors.items()} == {0: NotFinite}
    assert result.tokens[1] == expected(oracle, prompt_of(9), 2)[1]


def test_a_page_left_full_of_nan_does_not_harm_its_next_owners(
    runner: ModelRunner, oracle: LlamaForCausalLM
) -> None:
    runner.kv.tensor[:10] = torch.nan
    requests = [
        make_request(0, prompt_of(6), [0, 1, 2, 3, 4]),
        make_request(1, prompt_of(9), [5, 6, 7, 8, 9]),
    ]
    step(runner, *(chunk_of(r, len(r.prompt)) for r in requests))
    for _ in range(7):
        step(runner, *(chunk_of(r, 1) for r in requests))
    for request in requests:
        assert request.output == expected(oracle, list(request.prompt), 8)


def test_a_replaced_page_is_detected_without_a_notification(
    runner: ModelRunner, oracle: LlamaForCausalLM
) -> None:
    """The radix cache may swap a page for an equal one while the request runs."""
    request = make_request(0, prompt_of(9), [0, 1, 2, 3])
    step(runner, chunk_of(request, 9))
    runner.kv.tensor[20] = runner.kv.tensor[0]
    runner.kv.tensor[0] = 0
    request.pages[0] = 20
    step(runner, chunk_of(request, 1))
    assert request.output == expected(oracle, prompt_of(9), 2)


def test_steps_may_hold_the_same_slot_for_another_request(
    runner: ModelRunner, oracle: LlamaForCausalLM
) -> None:
    first = make_request(0, prompt_of(9), [0, 1, 2, 3])
    step(runner, chunk_of(first, 9))
    second = Request(id=77, prompt=prompt_of(11, seed=5), sampling=first.sampling, pages=[9, 8, 7], slot=0)
    step(runner, Chunk(second, second.slot, 0, 11, 0))
    assert second.output == expected(oracle, prompt_of(11, seed=5), 1)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("engine.executor.runner.load_model", "no room for the weights .*smaller model"),
        ("engine.executor.runner.KVPool", "no room for a KV pool of 256 tokens .*--kv-pool-tokens"),
        ("engine.executor.runner.Eager", "no room for CUDA graphs .*--cuda-graph-max-bs"),
    ],
)
def test_a_device_without_room_is_an_error_that_names_the_flags(
    where: str, said: str, folder: Path, oracle: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.8 GiB"
        )

    monkeypatch.setattr(where, full)
    with pytest.raises(OutOfDeviceMemory, match=said) as raised:
        ModelRunner(make_config(folder))
    assert "Tried to allocate 2.00 GiB): " in str(raised.value)
