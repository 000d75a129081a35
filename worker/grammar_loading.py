"""Compiles grammars of requests on other threads, so that no engine step waits for one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar
from engine.grammar.matcher import Matcher
from worker.session.inbox import Inbox

_THREADS: Final = 2
"""More than one, so that a slow grammar does not block the others."""


class GrammarLoading:
    """All methods except `stop` are for the engine thread only."""

    def __init__(self, compiler: GrammarCompiler, inbox: Inbox) -> None:
        self._compiler: Final = compiler
        self._inbox: Final = inbox
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    def matcher(self, grammar: Grammar) -> Matcher | None:
        """None if the grammar must be compiled first."""
        return self._compiler.kept(grammar)

    def compile(self, grammar: Grammar, then: Callable[[Future[Matcher]], None]) -> None:
        """Call `then` on the engine thread, with a matcher or the GrammarError that the future raises."""
        compiling = self._threads.submit(self._compiler.matcher, grammar)
        compiling.add_done_callback(lambda matcher: self._inbox.post(then, matcher))

    def stop(self) -> None:
        """Wait for grammars that are being compiled; queued ones are dropped."""
        self._threads.shutdown(cancel_futures=True)
