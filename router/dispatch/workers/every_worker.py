"""One call to every worker: done on all of them, or refused with the names of those where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from router.dispatch.workers.member import Member
from router.dispatch.workers.session import WorkerSession
from rpc.status import RpcError

T = TypeVar("T")


class WorkerRefused(Exception):
    """A worker answered that it did not do what was asked; the message says why."""


class NotEverywhere(Exception):
    """Some workers did not do what was asked."""

    def __init__(self, failures: Mapping[str, str], done: Iterable[str]) -> None:
        """`failures`: reasons by worker id. `done`: the workers that did it."""
        super().__init__("; ".join(f"{worker}: {reason}" for worker, reason in failures.items()))
        self.failures: Final = dict(failures)
        self.done: Final = tuple(done)


async def on_every_worker(
    members: Iterable[Member], call: Callable[[WorkerSession], Awaitable[T]], *, absent_fail: bool = False
) -> dict[str, T]:
    """The answers of all workers by worker id, when all have answered. They are called at once.

    `absent_fail`: workers that are wanted and have no session count as failed; otherwise they are left out,
    and the caller has them catch up. Raises NotEverywhere when an answer is an RpcError or a WorkerRefused,
    after all other answers.
    """
    failures: dict[str, str] = {}
    asked: dict[str, Awaitable[T]] = {}
    for member in members:
        if member.session is not None:
            asked[member.handle.worker_id] = call(member.session)
        elif absent_fail and member.wanted.is_set() and not member.is_stopped:
            failures[member.handle.worker_id] = f"not connected: {member.trouble}"
    answers: dict[str, T] = {}
    found = await asyncio.gather(*asked.values(), return_exceptions=True)
    for worker, answer in zip(asked, found, strict=True):
        if isinstance(answer, RpcError):
            failures[worker] = answer.details or answer.code.name
        elif isinstance(answer, WorkerRefused):
            failures[worker] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[worker] = answer
    if failures:
        raise NotEverywhere(failures, answers)
    return answers
