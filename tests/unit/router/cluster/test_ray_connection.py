"""When a router may decide for its cluster: while Ray answers it."""

from __future__ import annotations

import asyncio
import socket
from threading import Event

import pytest

from router.cluster.nodes import Node
from router.cluster.ray_connection import ClusterError, RayConnection
from router.config.settings import ClusterSettings, RouterConfig


async def test_ray_does_not_answer_while_a_question_is_open_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Event()

    def nodes() -> list[Node]:
        assert there.wait(10.0)
        return []

    monkeypatch.setattr("router.cluster.ray_connection.nodes", nodes)
    monkeypatch.setattr("router.cluster.ray_connection._SILENT_S", 0.05)
    connection = RayConnection([RouterConfig(model="m")])
    assert connection.answers, "it was asked nothing yet"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.nodes(), 0.1)
    assert not connection.answers
    again = asyncio.create_task(connection.nodes())
    await asyncio.sleep(0.0)
    assert not connection.answers, "a new question is no answer"
    there.set()
    await again
    assert connection.answers


def joining(port: int, patience: float) -> RayConnection:
    settings = ClusterSettings(ray_address=f"127.0.0.1:{port}", startup_timeout=patience)
    return RayConnection([RouterConfig(model="m", cluster=settings)])


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.cluster.ray_connection._SOON_S", 0.0)
    monkeypatch.setattr("router.cluster.ray_connection._LOOK_S", 0.01)


@pytest.mark.usefixtures("fast")
async def test_an_address_where_nothing_listens_is_said_at_once_and_refused_at_the_routers_own_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RayConnection, "_init", lambda _self: pytest.fail("Ray was asked"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: list[str] = []
    with pytest.raises(ClusterError, match=r"--startup-timeout 0.2 s \(Connection refused\)"):
        await joining(port, 0.2).join(said.append)
    assert said == [f"waiting for Ray at 127.0.0.1:{port} (--startup-timeout 0.2 s)"]


@pytest.mark.usefixtures("fast")
async def test_a_ray_that_comes_later_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = Event()
    monkeypatch.setattr(RayConnection, "_init", lambda _self: joined.set())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: list[str] = []
    join = asyncio.create_task(joining(port, 30.0).join(said.append))
    while not said:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with socket.create_server(("127.0.0.1", port)):
        await join
    assert joined.is_set()
