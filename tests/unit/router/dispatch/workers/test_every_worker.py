"""One call to every worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from router.dispatch.workers.every_worker import NotEverywhere, WorkerRefused, on_every_worker
from rpc.status import RpcUnreachable


def member(name: str, *, connected: bool = True, wanted: bool = True) -> Any:
    event = asyncio.Event()
    if wanted:
        event.set()
    return SimpleNamespace(
        handle=SimpleNamespace(worker_id=name),
        session=SimpleNamespace(worker_id=name) if connected else None,
        wanted=event,
        is_stopped=not wanted,
        trouble="starting",
    )


def everywhere(members: list[Any], answers: dict[str, Any], **more: bool) -> dict[str, Any]:
    called: list[str] = []

    async def call(session: Any) -> Any:
        called.append(session.worker_id)
        while len(called) < len(answers):  # noqa: ASYNC110 - all are called at once
            await asyncio.sleep(0)
        answer = answers[session.worker_id]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return asyncio.run(on_every_worker(members, call, **more))


def test_the_answers_of_all_workers_come_together() -> None:
    assert everywhere([member("a"), member("b")], {"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_each_worker_that_did_not_is_named_with_its_reason() -> None:
    members = [member(name) for name in "abc"]
    gone = RpcUnreachable("b", grpc.StatusCode.UNAVAILABLE, "connection reset")
    with pytest.raises(NotEverywhere, match=r"^b: connection reset; c: too large$") as found:
        everywhere(members, {"a": 1, "b": gone, "c": WorkerRefused("too large")})
    assert found.value.done == ("a",)


def test_a_worker_without_a_session_is_left_out_or_counts_as_failed() -> None:
    members = [member("a"), member("b", connected=False), member("c", connected=False, wanted=False)]
    assert everywhere(members, {"a": 1}) == {"a": 1}
    with pytest.raises(NotEverywhere, match=r"^b: not connected: starting$"):
        everywhere(members, {"a": 1}, absent_fail=True)


def test_an_error_of_ours_is_not_taken_for_one_of_a_worker() -> None:
    with pytest.raises(ZeroDivisionError):
        everywhere([member("a")], {"a": ZeroDivisionError()})
