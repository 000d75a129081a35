"""Uneven placement is told once, and only where workers could be spread better."""

from __future__ import annotations

import logging

import pytest

from router.cluster.nodes import Node
from router.cluster.placement_notice import PlacementNotice, uneven

A, B = Node("a", "node-a", "10.0.0.1", True, True), Node("b", "node-b", "10.0.0.2", True, True)
DEAD = Node("c", "node-c", "10.0.0.3", False, True)
HEAD = Node("h", "head", "10.0.0.9", True, False)


@pytest.mark.parametrize(
    ("node_ids", "known"),
    [
        ("aab", [A, B]),
        ("aa", [A]),
        ("aa", [A, DEAD]),
        ("a", [A, B]),
        ("aa", [A, HEAD]),
    ],
    ids=["no idle node", "one node", "the other is dead", "one worker", "the other has no GPU"],
)
def test_nothing_is_said_where_no_worker_could_be_placed_better(node_ids: str, known: list[Node]) -> None:
    assert uneven(node_ids, known, with_gpus=True) == ""


def test_an_idle_node_beside_one_with_several_workers_is_named() -> None:
    line = uneven("aa", [A, B], with_gpus=True)
    assert line.startswith("no worker on node-b (10.0.0.2), and several on node-a (10.0.0.1)")
    assert "head" in uneven("aa", [A, HEAD], with_gpus=False)


def test_it_is_told_once_until_it_was_mended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    node_ids = ["a", "a"]
    notice = PlacementNotice(lambda: node_ids, with_gpus=True)
    for _ in range(3):
        notice([A, B])
    assert len(caplog.messages) == 1
    node_ids[1] = "b"
    notice([A, B])
    node_ids[1] = "a"
    notice([A, B])
    assert len(caplog.messages) == 2
