"""Checks grammars in another process, which a limit of CPU time or memory may end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Final

from engine.errors import GrammarError
from engine.grammar.check_process import MAX_BYTES, MAX_CPU_S
from engine.grammar.grammar import Grammar
from engine.grammar.source import rejected, require_size

_COMMAND: Final = (sys.executable, "-m", "engine.grammar.check_process")
_PATIENCE_S: Final = 30.0
"""For a process that gets no CPU time."""

_TOO_LONG: Final = f"to check it takes more than {MAX_CPU_S} s of CPU time"
_TOO_LARGE: Final = f"to check it takes more than {MAX_BYTES >> 20} MiB of memory"
_BY_SIGNAL: Final[dict[int, str]] = {
    signal.SIGXCPU: _TOO_LONG,
    signal.SIGABRT: _TOO_LARGE,  # by the library, and by what frees or allocates
    signal.SIGSEGV: _TOO_LARGE,  # of the stack
    signal.SIGBUS: _TOO_LARGE,
}


class CheckProcess:
    """One check at a time. The process starts with the first check, in 0.1 s, and again after it was ended.

    It takes 20 MB, and no CPU time between checks.
    """

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_given_up = False
        """The process was killed, and has not yet been waited for."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def check(self, grammar: Grammar) -> None:
        """Raise GrammarError unless the grammar can be compiled within the limits.

        When cancelled, the check ends, too.
        """
        require_size(grammar)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reason = await self._answer(grammar)
        except TimeoutError:
            raise rejected(grammar, _TOO_LONG) from None
        if reason:
            raise GrammarError(reason)

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

    async def _answer(self, grammar: Grammar) -> str:
        """Raises GrammarError if the process ended by one of its limits."""
        before, process = self._process, await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            with suppress(ConnectionError):
                process.stdin.write(json.dumps([grammar.kind.value, grammar.text]).encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
            status = 0 if answer else await process.wait()
        except asyncio.CancelledError:
            self._kill(process)
            raise
        if answer:
            return str(json.loads(answer))
        reason = _BY_SIGNAL.get(-status)
        if reason is None and process is before:
            return await self._answer(grammar)  # it may have been ended before this check
        if reason is None:
            raise RuntimeError(f"{' '.join(_COMMAND)} ended with status {status}")
        raise rejected(grammar, reason)

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None or self._is_given_up:
            await self.close()
            # In a process group of its own: a Ctrl-C on the terminal ends it through this process.
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
        return self._process
