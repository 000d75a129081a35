"""Planning a step while the one before runs: a real model must not notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

PROMPTS = [
    torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in (5, 40, 1, 23)
]


def answers(folder: Path, sampling: SamplingParams, **changes: object) -> list[list[int]]:
    engine = Engine(make_config(folder, **changes))
    requests = [Request(id=i, prompt=prompt, sampling=sampling) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    engine.check_pages()
    return [request.output for request in requests]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=20, ignore_eos=True),
        SamplingParams(max_tokens=20, temperature=0.9, seed=3, frequency_penalty=0.3),
    ],
    ids=["greedy", "drawn with penalties"],
)
@pytest.mark.parametrize("num_pages", [64, 20], ids=["roomy", "preempting"])
@pytest.mark.parametrize("chunk_budget", [8, None])
def test_overlap_changes_no_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampling: SamplingParams,
    num_pages: int,
    chunk_budget: int | None,
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    save_tiny_llama(tmp_path)
    changes: dict[str, object] = {"num_pages": num_pages, "chunk_budget": chunk_budget}
    plain = answers(tmp_path, sampling, **changes)
    assert answers(tmp_path, sampling, **changes, overlap=True) == plain
