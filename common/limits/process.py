"""A program that answers questions in a process of its own, which a limit of CPU time or memory may end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar

from common.limits.work import LENGTH_BYTES


class LimitExceeded(Exception):
    """The answer needs more CPU time or memory than a limit allows; the message says which."""


class LimitedProcess:
    """One question at a time. The process starts with the first, and again after it was ended.

    It takes no CPU time between questions.
    """

    def __init__(self, command: Sequence[str], *, too_long: str, too_large: str, patience_s: float) -> None:
        """`command`: a program that calls `work.serve`. `patience_s`: for one that gets no CPU time.

        `too_long`, `too_large`: messages of LimitExceeded, for time and memory.
        """
        self._command: Final = tuple(command)
        self._too_long: Final = too_long
        self._patience_s: Final = patience_s
        self._by_signal: Final[dict[int, str]] = {
            signal.SIGXCPU: too_long,
            signal.SIGABRT: too_large,  # by the library, and by what frees or allocates
            signal.SIGSEGV: too_large,  # of the stack
            signal.SIGBUS: too_large,
        }
        self._process: Process | None = None
        self._is_given_up = False
        """The process was killed, and has not yet been waited for."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def ask(self, question: bytes, patience_s: float | None = None) -> bytes:
        """The answer. Raises LimitExceeded. When cancelled, the work ends, too.

        `patience_s`: in place of the process' own, such as for its start.
        """
        try:
            async with asyncio.timeout(patience_s or self._patience_s):
                return await self._answer(question)
        except TimeoutError:
            raise LimitExceeded(self._too_long) from None

    async def close(self) -> None:
        """End the process. Returns when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            self._kill(process)
            await process.wait()
            self._is_given_up = False
            assert process.stdin is not None
            process.stdin.close()
            with suppress(ConnectionError):
                await process.stdin.wait_closed()

    def _kill(self, process: Process) -> None:
        self._is_given_up = True
        with suppress(ProcessLookupError):
            process.kill()

    async def _answer(self, question: bytes) -> bytes:
        """Raises LimitExceeded if the process ended by one of its limits."""
        before, process = self._process, await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                process.stdin.write(len(question).to_bytes(LENGTH_BYTES, "little"))
                process.stdin.write(question)
                await process.stdin.drain()
                length = await process.stdout.readexactly(LENGTH_BYTES)
                return await process.stdout.readexactly(int.from_bytes(length, "little"))
            status = await process.wait()
        except asyncio.CancelledError:
            self._kill(process)
            raise
        reason = self._by_signal.get(-status)
        if reason is None and process is before:
            return await self._answer(question)  # it may have been ended before this question
        if reason is None:
            raise RuntimeError(f"{' '.join(self._command)} ended with status {status}")
        raise LimitExceeded(reason)

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None or self._is_given_up:
            await self.close()
            # In a process group of its own: a Ctrl-C on the terminal ends it through this process.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
        return self._process


_ProcessT = TypeVar("_ProcessT", bound=LimitedProcess)


class ProcessTurns(Generic[_ProcessT]):
    """Several processes, lent for a question each; those who ask have a share of them each."""

    def __init__(self, processes: Sequence[_ProcessT], share: int) -> None:
        """`share`: processes that one of those who ask may have at a time."""
        self.processes: Final = tuple(processes)
        self._share: Final = share
        self._idle: Final = list(processes)
        self._free: Final = asyncio.Semaphore(len(processes))
        self._shares: Final[dict[str, asyncio.Semaphore]] = {}

    @asynccontextmanager
    async def process(self, name: str) -> AsyncIterator[_ProcessT]:
        """A process that is idle, the last one that was used. `name`: of the one that asks; empty: anyone,
        to whom all processes may be lent."""
        share = self._share if name else len(self.processes)
        async with self._shares.setdefault(name, asyncio.Semaphore(share)), self._free:
            process = self._idle.pop()
            try:
                yield process
            finally:
                self._idle.append(process)

    async def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            await process.close()
