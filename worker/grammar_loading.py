"""Compiles the grammars of requests beside the engine thread: no step waits for one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar
from engine.grammar.matcher import Matcher
from worker.session.inbox import Inbox

__all__ = ["GrammarLoading"]

_THREADS: Final = 2
"""One grammar that takes a second does not hold up all others."""


class GrammarLoading:
    """All methods belong to the engine thread, but for `stop`."""

    def __init__(self, compiler: GrammarCompiler, inbox: Inbox) -> None:
        self._compiler: Final = compiler
        self._inbox: Final = inbox
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    def matcher(self, grammar: Grammar) -> Matcher | None:
        """None: it is to be compiled first."""
        return self._compiler.matcher(grammar) if self._compiler.has(grammar) else None

    def compile(self, grammar: Grammar, then: Callable[[Future[Matcher]], None]) -> None:
        """Call `then` on the engine thread, with a matcher or the GrammarError that the future raises."""
        compiling = self._threads.submit(self._compiler.matcher, grammar)
        compiling.add_done_callback(lambda matcher: self._inbox.post(then, matcher))

    def stop(self) -> None:
        """Wait for the grammars that are being compiled; the others never are."""
        self._threads.shutdown(cancel_futures=True)
