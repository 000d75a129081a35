"""Spans of an answer by the weights that have computed them."""

from __future__ import annotations

from typing import Any

import pytest

from router.api.openai.answers.weight_versions import weight_versions
from rpc.baton.v1 import sampling_pb2, worker_pb2


def spans(begins: list[tuple[int, str]], num_tokens: int) -> list[tuple[Any, ...]]:
    outputs = [worker_pb2.Output(prompt_logprobs={})]
    for position, version in begins:
        begin = sampling_pb2.WeightsBegin(position=position, version=version)
        outputs.append(worker_pb2.Output(weights_begin=begin))
    return [tuple(span.values()) for span in weight_versions(outputs, num_tokens)]


@pytest.mark.parametrize(
    ("begins", "num_tokens", "expected"),
    [
        ([(0, "a")], 5, [("a", 0, 5)]),
        ([(0, "a"), (3, "b")], 5, [("a", 0, 3), ("b", 3, 5)]),
        ([(0, "a"), (3, "a"), (4, "b")], 5, [("a", 0, 4), ("b", 4, 5)]),
        ([(0, "a"), (3, "b"), (4, "a")], 9, [("a", 0, 3), ("b", 3, 4), ("a", 4, 9)]),
        ([(0, "a"), (3, "b")], 3, [("a", 0, 3)]),
        ([(0, "a"), (3, "b"), (5, "b")], 2, [("a", 0, 2)]),
        ([(0, "a")], 0, []),
        ([], 0, []),
    ],
    ids=str,
)
def test_spans_cover_the_answer_in_order(
    begins: list[tuple[int, str]], num_tokens: int, expected: list[tuple[Any, ...]]
) -> None:
    """Retries with the same weights are one span; tokens after a stop string belong to none."""
    assert spans(begins, num_tokens) == expected
