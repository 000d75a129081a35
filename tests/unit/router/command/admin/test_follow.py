"""Answers leave a worker that another router drains, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.command.admin.drain import WorkerDrainer
from router.dispatch.workers.registry import Registry


class Session(SimpleNamespace):
    """Session of a worker that another router drains; it has one answer of this router."""

    __hash__ = object.__hash__

    def __init__(self) -> None:
        super().__init__(
            worker_id="decode-0",
            alive=True,
            load=SimpleNamespace(draining=True, updating=False, requests=1, tokens=1),
        )


async def test_answers_move_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.command.admin.drain._AGAIN_S", 0.0)
    session = Session()
    member: Any = SimpleNamespace(session=session, wanted=asyncio.Event())
    member.wanted.set()
    calls = 0

    async def wait_until(condition: Any, timeout_s: float) -> bool:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return True

    async def migrate(worker_id: str, timeout_s: float) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError(worker_id)
        session.load.requests = 0
        session.load.draining = False
        return 1

    registry = cast(Registry, SimpleNamespace(members=lambda: [member], wait_until=wait_until))
    drainer = WorkerDrainer(registry, migrate)
    following = asyncio.create_task(drainer.follow())
    async with asyncio.timeout(30):
        while session.load.requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
    while drainer._followed:  # noqa: ASYNC110
        await asyncio.sleep(0)
    session.load.draining, session.load.requests = True, 1  # drained once more
    async with asyncio.timeout(30):
        while session.load.requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
    following.cancel()
    assert calls == 3
    assert "answers do not move from decode-0: 'decode-0'" in caplog.text
