"""Signals. The first SIGTERM or SIGINT drains the router, the second one ends it at once.

SIGHUP reloads files. It also tells of a closed terminal, which drains a router that was started there, unless
under `nohup`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hangups_held() -> Iterator[None]:
    """SIGHUPs wait, also those of processes that are started in the block, until `Shutdown.install` there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interrupted(Exception):
    """A signal arrived before the awaited work was done."""


class Shutdown:
    """Handles the signals from `install` on."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.ends_workers = False
        """Whether an operator asked for the end of the workers too."""
        self._again: asyncio.Event | None = None
        self.on_reload: Callable[[], object] = lambda: None
        """Called on SIGHUP."""
        self._follows_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def request(self, workers: bool) -> None:
        """As a first signal does."""
        self.ends_workers = workers
        self._asked.set()

    def again(self) -> asyncio.Event:
        """From now on the second signal sets this event, and only the next one ends the process."""
        self._again = asyncio.Event()
        return self._again

    def install(self) -> None:
        """Install the handlers. Call it again after libraries that install their own, such as Ray."""
        loop = asyncio.get_running_loop()
        for signal_ in _SIGNALS:
            loop.add_signal_handler(signal_, self._on_signal, signal_)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; cancels it and returns None if a signal arrives first."""
        try:
            return await self.unless_requested(work)
        except Interrupted:
            return None

    async def unless_requested(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; cancels it and raises Interrupted if a signal arrives first."""
        working, asked = asyncio.create_task(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise Interrupted
        finally:
            for task in (working, asked):
                task.cancel()
            await asyncio.wait({working, asked})

    def _on_signal(self, signal_: signal.Signals) -> None:
        if self._asked.is_set():
            if self._again is None or self._again.is_set():
                # End at once. Workers abort the requests of a router that is gone.
                os._exit(128 + signal_)
            self._again.set()
        self._asked.set()

    def _on_hangup(self) -> None:
        if self._follows_terminal and not _has_terminal():
            self._asked.set()  # both the shell and the kernel may tell
        else:
            self.on_reload()


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal; after that was closed it has none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
