"""A program that checks grammars, one at a time, within limits of CPU time and memory.

```
python -m engine.grammar.check_process
["json_schema", "{\"type\": \"object\"}"]     a grammar, a line of JSON on its standard input
""                                           why it is refused, on its standard output; empty: accepted
```
A check that exceeds a limit ends the process with a signal: SIGXCPU for time, SIGABRT for memory. It also
ends with its input, and so with the process that started it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from typing import Final

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.source import check_grammar

MAX_CPU_S: Final = 1
"""CPU time of one check. The kernel counts whole seconds, so a check may take up to one more."""
MAX_BYTES: Final = 256 << 20
"""Memory of the process; 14 MB of it are used before a check."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library prints a stack when it lacks memory
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    for line in sys.stdin.buffer:
        spent = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + MAX_CPU_S, most))
        kind, text = json.loads(line)
        print(json.dumps(_refusal(Grammar(GrammarKind(kind), text))), flush=True)


def _refusal(grammar: Grammar) -> str:
    try:
        check_grammar(grammar)
    except GrammarError as error:
        return str(error)
    except MemoryError:
        os.abort()
    return ""


if __name__ == "__main__":
    main()
