"""A program that checks grammars, one at a time, within limits of CPU time and memory.

`python -m engine.grammar.check_process` answers frames (see `common.limits.work`): a grammar, as JSON such
as ["regex", "[a-z]+"], with why it is refused; empty: accepted.
"""

from __future__ import annotations

import json
from typing import Final

from common.limits.work import serve
from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.source import check_grammar

MAX_CPU_S: Final = 1
MAX_BYTES: Final = 256 << 20


def _refusal(question: bytes) -> bytes:
    kind, text = json.loads(question)
    try:
        check_grammar(Grammar(GrammarKind(kind), text))
    except GrammarError as error:
        return str(error).encode()
    return b""


if __name__ == "__main__":
    serve(_refusal, cpu_s=MAX_CPU_S, memory_bytes=MAX_BYTES)
