"""Each row of a mixed batch gets the answer of its own adapter, as merged by PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.loop.engine import Engine
from engine.speculation.kinds import DrafterKind
from tests.unit.engine.adapters.adapted import COUNT, adapted_engine, answer, ask, load
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.tiny import VOCAB, save_tiny_llama


@pytest.mark.parametrize("chunk", [3, 16, 64])
def test_rows_of_a_mixed_batch_get_the_answers_of_their_adapters(tmp_path: Path, chunk: int) -> None:
    base = tmp_path / "base"
    save_tiny_llama(base)
    adapters = [save_adapter(base, tmp_path / f"adapter{k}", k, r=2 + 2 * k) for k in range(3)]
    asked = prompts(2, 21, VOCAB)
    engine = adapted_engine(base, chunk_budget=chunk)
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    requests = [
        ask(10 * number + place, prompt, digest)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests)
    ]
    answer(engine, *requests)
    models = [merged(base, adapter) for adapter in (None, *adapters)]
    right = [greedy(model, prompt, COUNT) for prompt in asked for model in models]
    assert [request.output for request in requests] == right
    assert len({tuple(output) for output in right}) > 4, "the adapters change nothing"


def both(
    base: Path, adapters: list[Path], engine: Engine, prompt: list[int], **sampling: Any
) -> list[Request]:
    """Requests of the base model and of each adapter, answered together."""
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    requests = [ask(number, prompt, digest, **sampling) for number, digest in enumerate(digests)]
    answer(engine, *requests)
    return requests


def test_drafts_of_the_base_change_no_answer_of_an_adapter(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_tiny_llama(base)
    adapters = [save_adapter(base, tmp_path / f"adapter{k}", k) for k in range(2)]
    speculation = SpeculationConfig(drafters=frozenset({DrafterKind.NGRAM}), num_draft_tokens=3)
    engine = adapted_engine(base, chunk_budget=16, speculation=speculation)
    prompt = prompts(1, 5, VOCAB)[0] * 4
    requests = both(base, adapters, engine, prompt, max_tokens=24)
    right = [greedy(merged(base, adapter), prompt, 24) for adapter in (None, *adapters)]
    assert [request.output for request in requests] == right
    assert engine.stats().drafts.drafted > 0


def test_a_name_that_gets_another_content_gets_other_answers_to_the_same_prompt(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "style"
    save_tiny_llama(base)
    engine, prompt = adapted_engine(base), prompts(1, 40, VOCAB)[0]
    outputs = []
    for seed in range(2):
        save_adapter(base, folder, seed)
        request = ask(seed, prompt, load(engine, folder, "style"))
        answer(engine, request)
        assert request.output == greedy(merged(base, folder), prompt, COUNT)
        outputs.append(request.output)
    assert outputs[0] != outputs[1]
    assert engine.stats().cache_hit_tokens == 0
