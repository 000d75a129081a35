"""How much memory a compiled grammar takes, estimated from its source.

llguidance reports no sizes to Python, and a process with other threads cannot measure one allocation. The
factors are measured by `python -m benchmarks.micro.grammar_memory`, for a vocabulary of 49,152. Outputs that
follow a grammar add lexer states, which the estimate leaves out: `LIMITS.max_lexer_states` bounds them.
"""

from __future__ import annotations

from typing import Final

from engine.grammar.grammar import Grammar
from engine.grammar.source import divisors_of

_BASE: Final = 180_000
"""Lexer states that every grammar of the vocabulary has."""
_PER_SOURCE_BYTE: Final = 200
"""Measured: 35 for long enumerations, 90 for choices, 140 to 200 for schemas with many properties."""
_PER_REMAINDER: Final = 500
"""A `multipleOf` has a lexer state for each remainder."""


def estimated_bytes(grammar: Grammar, source: str) -> int:
    """Of `grammar` after its first mask; `source` is its form for llguidance (`source_of`)."""
    remainders = sum(divisors_of(grammar))
    return _BASE + _PER_SOURCE_BYTE * len(source.encode()) + _PER_REMAINDER * remainders
