"""Checks grammars in another process, which a limit of CPU time or memory may end."""

from __future__ import annotations

import json
import sys
from typing import Final

from common.limits.process import LimitedProcess, LimitExceeded
from engine.errors import GrammarError
from engine.grammar.check_process import MAX_BYTES, MAX_CPU_S
from engine.grammar.grammar import Grammar
from engine.grammar.source import rejected, require_size

_PATIENCE_S: Final = 30.0


class CheckProcess(LimitedProcess):
    """One check at a time. The process starts with the first check, in 0.1 s; it takes 20 MB."""

    def __init__(self) -> None:
        super().__init__(
            (sys.executable, "-m", "engine.grammar.check_process"),
            too_long=f"to check it takes more than {MAX_CPU_S} s of CPU time",
            too_large=f"to check it takes more than {MAX_BYTES >> 20} MiB of memory",
            patience_s=_PATIENCE_S,
        )

    async def check(self, grammar: Grammar) -> None:
        """Raise GrammarError unless the grammar can be compiled within the limits.

        When cancelled, the check ends, too.
        """
        require_size(grammar)
        try:
            reason = await self.ask(json.dumps([grammar.kind.value, grammar.text]).encode())
        except LimitExceeded as error:
            raise rejected(grammar, str(error)) from None
        if reason:
            raise GrammarError(reason.decode())
