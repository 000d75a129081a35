"""Waiting for the nodes of a cluster, and noticing that its Ray is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest

from router.cluster.nodes import Node, patience_s, until_enough, until_lost, workers_by_node

A = Node("a", "head", "10.0.0.10", True)
B = Node("b", "w1", "10.0.0.11", True)
DEAD = Node("c", "w2", "10.0.0.12", False)
PATIENCE_S = 5.0
SILENCE_S = 0.2


class Ray:
    """Answers what it is told to, and the last of it for ever. None: not at all."""

    def __init__(self, *answers: Sequence[Node] | Exception | None) -> None:
        self._answers: Iterator[Sequence[Node] | Exception | None] = iter(answers)
        self._last: Sequence[Node] | Exception | None = ()
        self.asked = 0

    async def nodes(self) -> Sequence[Node]:
        self.asked += 1
        self._last = answer = next(self._answers, self._last)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer


async def loss(ray: Ray) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return str(await until_lost(ray.nodes, "a", ask_s=0.001, answer_s=0.01, silence_s=SILENCE_S))


async def test_workers_are_placed_when_enough_nodes_are_alive() -> None:
    said: list[str] = []
    ray = Ray([A], [A, DEAD], [A, B, DEAD])
    await until_enough(ray.nodes, 2, said.append, ask_s=0.0)
    assert said == ["waiting for nodes: 1 of 2 are alive"]
    assert ray.asked == 3


async def test_a_cluster_without_this_node_is_another_cluster() -> None:
    assert "was restarted" in await loss(Ray([A, B], [B]))


async def test_a_node_that_ray_declared_dead_has_lost_its_ray() -> None:
    assert "not part of the Ray cluster" in await loss(Ray([Node("a", "head", "10.0.0.10", False), B]))


async def test_ray_is_gone_when_it_is_silent_for_too_long() -> None:
    failed = RuntimeError("GCS is not there\nand more")
    ray = Ray([A], failed, None, failed, [A], failed, None, None, failed)
    began = time.monotonic()
    reason = await loss(ray)
    assert time.monotonic() - began > SILENCE_S
    assert reason.startswith("Ray did not answer for ")
    assert reason.endswith("GCS is not there")
    assert ray.asked > 9, "an answer ends the silence"


@pytest.mark.parametrize(("setting", "patience"), [(None, 25.0), ("120", 85.0), ("10", 5.0)])
def test_the_router_gives_ray_up_before_ray_ends_the_router(
    setting: str | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv(name, setting)
    assert patience_s() == patience


async def test_another_ray_at_the_same_address_is_detected_at_once() -> None:
    ray = Ray(
        [A],
        RuntimeError(
            "RPC error: WrongClusterID: Perhaps the client is accessing GCS after it has restarted."
        ),
    )
    assert "was restarted" in await loss(ray)
    assert ray.asked == 2


def test_workers_are_listed_by_node() -> None:
    workers = [("prefill-0", "a"), ("decode-0", "b"), ("decode-1", "a"), ("decode-2", "z")]
    assert workers_by_node(workers, [A, B]) == (
        "prefill-0, decode-1 on head (10.0.0.10); decode-0 on w1 (10.0.0.11); decode-2 on an unknown node"
    )
