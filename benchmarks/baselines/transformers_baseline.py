"""Measures `generate` of transformers on a batch, with the time of every token.

Runs in its own process, so that memory is measured separately. Reads requests from standard input and writes
records to standard output, one JSON document each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria
from transformers.utils.logging import disable_progress_bar

from benchmarks.lib.load.client import Record


class _Stopwatch(StoppingCriteria):
    """Never stops anything; it is what `generate` calls after each token."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.ticks.append(time.monotonic())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def generate(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Record]:
    """Greedy answers of exactly `max_tokens` tokens to prompts of one length, all in one batch."""
    input_ids = torch.tensor(prompts, device=model.device)
    stopwatch = _Stopwatch()
    sent = time.monotonic()
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        pad_token_id=0,
        stopping_criteria=[stopwatch],
    )
    ended = time.monotonic()
    length = input_ids.shape[1]
    return [
        Record(
            sent=sent,
            arrivals=stopwatch.ticks,
            ended=ended,
            prompt_tokens=length,
            output_tokens=output.shape[1] - length,
        )
        for _ in prompts
    ]


def main() -> None:
    """The job's batches (lists of prompts) run one after the other; the first one warms up."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    job = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(job["model_path"], dtype=getattr(torch, job["dtype"]))
    model.to(job["device"])
    batches = [generate(model, prompts, job["max_tokens"]) for prompts in job["batches"]]
    json.dump([[asdict(record) for record in records] for records in batches], sys.stdout)


if __name__ == "__main__":
    main()
