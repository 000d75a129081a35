"""FA3, or FA2 which shares contexts among multiprocessors: the shapes where it matters, on 132 of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.mixers.attention.flashinfer.kernel_choice import splits_contexts

MEASURED = Path(__file__).parent / "gpu-chunks-h200.json"


def test_on_the_gpu_that_was_measured_the_choice_is_never_far_from_the_better_kernel() -> None:
    for row in json.loads(MEASURED.read_text()):
        lengths, contexts = np.array(row["chunks"], dtype=np.int64).T
        times = row["us"]
        chosen = "fa2" if splits_contexts(lengths, contexts, num_heads=32, multiprocessors=132) else "fa3"
        assert times[chosen] < 1.25 * min(times["fa2"], times["fa3"]), row


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([(64, 20_000)], True),
        ([(256, 256)], False),
        ([(30, 700), (400, 400)], False),
        ([(160, 20_000)], True),
        ([(512, 20_000)], False),
        ([(2048, 8192)], False),
        ([(16_384, 16_384)], False),
        ([(400, 400), (400, 400)], False),
        ([(400, 400), (400, 400), (64, 30_000)], True),
    ],
)
def test_a_few_tokens_of_a_long_prompt_want_the_context_split(
    chunks: list[tuple[int, int]], expected: bool
) -> None:
    lengths, contexts = np.array(chunks, dtype=np.int64).T
    assert splits_contexts(lengths, contexts, num_heads=32, multiprocessors=132) is expected
