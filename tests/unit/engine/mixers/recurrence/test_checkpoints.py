"""Checkpoints of a real model's states in the prefix cache."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.unit.engine.modeling.models.references import reference
from tests.unit.tiny import make_config

ANSWER = 6


def test_prompts_that_branch_one_token_after_a_checkpoint_get_the_reference(tmp_path: Path) -> None:
    oracle = reference("qwen3-next").eval()
    oracle.save_pretrained(tmp_path)
    engine = Engine(make_config(tmp_path, page_size=1, num_pages=512, chunk_budget=64, num_state_slots=12))
    shared = [(11 * i) % 89 for i in range(20)]
    for id, end in enumerate([[], [50, 51], [60, 61, 62], [70, 71, 72]]):
        request = Request(id, shared + end, SamplingParams(max_tokens=ANSWER, ignore_eos=True))
        engine.submit(request)
        while engine.has_work:
            engine.step()
        ids = list(request.prompt)
        for _ in range(ANSWER):
            ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        assert request.output == ids[-ANSWER:]
        assert request.num_cached == (19 if end else 0)
