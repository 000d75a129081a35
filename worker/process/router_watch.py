"""Ends a worker that no router can reach.

A worker outlives its routers, and waits for the next one. On a node that is partitioned from the cluster it
would wait in vain: it would keep its GPU, and keep connecting to its peers, until the network recovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from common.background import supervised


class RouterWatch:
    """Timeout without router sessions. All methods belong to one asyncio loop."""

    def __init__(
        self, timeout_s: float, on_gone: Callable[[str], None], is_reachable: Callable[[], Awaitable[bool]]
    ) -> None:
        """`on_gone(reason)` is called once, `timeout_s` after `start` or after the last session ended.

        If `is_reachable()`, a router may still find the worker, and the timeout starts again.
        """
        self._timeout_s = timeout_s
        self._on_gone = on_gone
        self._is_reachable = is_reachable
        self._asking: asyncio.Task[None] | None = None
        self._sessions = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Start the timeout: routers can connect from now on."""
        if not (self._is_stopped or self._sessions):
            self._start_timer()

    def stop(self) -> None:
        """Cancel the timeout."""
        self._is_stopped = True
        self._cancel()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Context for the time that a router's stream is open; no timeout runs meanwhile."""
        self._sessions += 1
        self._cancel()
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                self.start()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._on_timeout)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timeout(self) -> None:
        self._asking = supervised(self._ask(), "is Ray there?")

    async def _ask(self) -> None:
        if await self._is_reachable():
            self.start()
        elif not (self._is_stopped or self._sessions):
            self._on_gone(f"no router was connected for {self._timeout_s:g} s, and Ray does not answer")


_ANSWER_S: Final = 5.0


class RayContact:
    """Asks the GCS of the Ray in which this process is an actor."""

    def __init__(self) -> None:
        # Now: without the GCS, a new client waits for a minute.
        self._client: Any = GcsClient(address=ray.get_runtime_context().gcs_address)

    async def answers(self) -> bool:
        """Whether the GCS answers; a node that it has declared dead is ended by Ray itself."""
        try:
            await asyncio.to_thread(self._ask)
        except Exception:  # Ray's errors share no base class
            return False
        return True

    def _ask(self) -> None:
        self._client.get_all_node_info(timeout=_ANSWER_S)
