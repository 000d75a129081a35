"""When a router may decide for its cluster: while Ray answers it."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from router.cluster.nodes import Node
from router.cluster.ray_connection import RayConnection
from router.config.settings import RouterConfig


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
