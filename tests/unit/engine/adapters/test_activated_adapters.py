"""Activated adapters (aLoRA) give the answers of PEFT, and share the KV before their invocation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.config import Forecast, LoraConfig, SpeculationConfig
from engine.core.adapters import AdapterInfo
from engine.core.request import Request
from engine.errors import AdapterRefused, UnservableRequest
from engine.loop.engine import Engine
from engine.speculation.kinds import DrafterKind
from router.dispatch.adapters.adapted_work import fill_origin
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.adapters.adapted import COUNT, adapted_engine, answer, ask
from tests.unit.engine.adapters.peft_oracle import activated_greedy, greedy, merged, prompts, save_adapter
from tests.unit.tiny import VOCAB, save_tiny_llama
from worker.session.convert import request_from_proto

INVOCATIONS = [(11, 12, 11), (13,)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def styles(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two that are activated, and one that is always used."""
    folder = tmp_path_factory.mktemp("styles")
    activated = [
        save_adapter(base, folder / f"style{seed}", seed, alora_invocation_tokens=list(tokens))
        for seed, tokens in enumerate(INVOCATIONS)
    ]
    return [*activated, save_adapter(base, folder / "always", 2)]


def load(engine: Engine, style: Path) -> AdapterInfo:
    return engine.adapters.add(engine.adapters.read(style.name, style))


def adapted(id: int, prompt: Sequence[int], info: AdapterInfo | None, count: int = COUNT) -> Request:
    sampling = sampling_pb2.SamplingParams(max_tokens=count, ignore_eos=True)
    work = worker_pb2.Work(request_id=id, prompt=prompt, sampling=sampling)
    fill_origin(work, info)
    return request_from_proto(work, 0.0)


def asked() -> list[tuple[list[int], int]]:
    """Prompts with the style of each, before whose invocation others come, too."""
    before = [token for token in prompts(1, 30, VOCAB)[0] if token not in (11, 12, 13)]
    early, late = INVOCATIONS[0], INVOCATIONS[1]
    return [
        ([*before, *early, 40, 41], 0),
        ([*before, *late], 1),
        ([*early, *before, *early, *before[:5]], 0),  # the last one counts
        ([*early, *before], 0),  # from the first token on
        (before, 0),  # without an invocation: as the base model
        ([*before, *early, 40, 41], 2),
        ([*before, 11, 12, 11, 12, 11], 0),  # occurrences overlap
    ]


def right(base: Path, styles: Sequence[Path], prompt: Sequence[int], style: int, count: int) -> list[int]:
    if style == 2:
        return greedy(merged(base, styles[2]), prompt, count)
    return activated_greedy(base, styles[style], prompt, count)


ENGINES: dict[str, dict[str, Any]] = {
    "chunks of 3": {"chunk_budget": 3, "page_aligned_chunks": False},
    "chunks of 7": {"chunk_budget": 7, "page_aligned_chunks": False},
    "whole prompts": {"chunk_budget": 64},
    "overlap": {"chunk_budget": 16, "overlap": True},
    "preemption": {"num_pages": 26, "forecast": Forecast.NONE},
    "drafts": {
        "speculation": SpeculationConfig(
            drafters=frozenset({DrafterKind.NGRAM}), num_draft_tokens=3, adaptive=False
        )
    },
}


@pytest.mark.parametrize("settings", ENGINES.values(), ids=ENGINES)
def test_answers_are_those_of_peft(settings: dict[str, Any], base: Path, styles: list[Path]) -> None:
    engine, count = adapted_engine(base, lora=LoraConfig(max_loras=3, max_lora_rank=4), **settings), 12
    infos = [load(engine, style) for style in styles]
    expected = [right(base, styles, prompt, style, count) for prompt, style in asked()]
    for first in (0, 100):  # the second time, from the cache
        requests = [
            adapted(first + n, prompt, infos[style], count) for n, (prompt, style) in enumerate(asked())
        ]
        answer(engine, *requests)
        assert [request.output for request in requests] == expected
    assert engine.stats().preemptions or "num_pages" not in settings


def test_kv_before_the_invocation_is_that_of_the_base_model_and_of_other_adapters(
    base: Path, styles: list[Path]
) -> None:
    engine = adapted_engine(base, lora=LoraConfig(max_loras=3, max_lora_rank=4))
    infos, size = [load(engine, style) for style in styles], engine.config.page_size
    before = [token for token in prompts(1, 40, VOCAB)[0] if token not in (11, 12, 13)]
    shared = len(before) // size * size
    answer(engine, ask(0, before))
    for number, info in enumerate(infos[:2], 1):
        prompt = [*before, *INVOCATIONS[number - 1], *range(20, 20 + 2 * size)]
        first, again = adapted(10 * number, prompt, info), adapted(10 * number + 1, prompt, info)
        plain, always = ask(10 * number + 2, prompt), adapted(10 * number + 3, prompt, infos[2])
        for request, cached in ((first, shared), (again, None), (plain, shared), (always, 0)):
            answer(engine, request)
            if request is always:  # the second prompt begins like the first one
                cached = shared if number > 1 else 0
            assert request.num_cached == ((len(prompt) - 1) // size * size if cached is None else cached)
        assert first.output == again.output == right(base, styles, prompt, number - 1, COUNT)
        assert plain.output == greedy(merged(base, None), prompt, COUNT) != first.output
        assert always.output == right(base, styles, prompt, 2, COUNT)


def test_a_request_names_the_adapter_in_the_key_of_its_activation(base: Path, styles: list[Path]) -> None:
    engine = adapted_engine(base)
    info = load(engine, styles[0])
    prompt, _ = asked()[0]
    blind = adapted(1, prompt, info)
    blind.prompt_keys = blind.prompt
    late = adapted(2, prompt, info)
    late.adapter_start = len(prompt)
    for request in (blind, late):
        with pytest.raises(UnservableRequest, match="no adapter is activated"):
            engine.submit(request)


def test_impossible_invocations_are_refused_by_name(base: Path, tmp_path: Path) -> None:
    engine = adapted_engine(base)
    save_adapter(base, tmp_path / "style", 1, alora_invocation_tokens=[VOCAB])
    with pytest.raises(AdapterRefused, match=f"activated by token {VOCAB}"):
        engine.adapters.read("style", tmp_path / "style")
