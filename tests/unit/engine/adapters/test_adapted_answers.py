"""Each row of a mixed batch gets the answer of its own adapter, as merged by PEFT."""

from __future__ import annotations

from pathlib import Path

import pytest

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
