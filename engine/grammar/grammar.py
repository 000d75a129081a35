"""What an output must look like, as a client states it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_GRAMMAR_BYTES: Final = 128 << 10
"""Largest `Grammar.text` in UTF-8."""


class GrammarKind(Enum):
    """The language of `Grammar.text`."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema that is an object."""
    REGEX = "regex"
    """A regular expression that matches the whole output: Rust's syntax, without look-around."""
    CHOICE = "choice"
    """A JSON array of strings, one of which is the output."""
    EBNF = "ebnf"
    """A context-free grammar: GBNF (`root ::= ...`, as for xgrammar and llama.cpp) or Lark (`start: ...`)."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The constraint on one request's output. Equal grammars share one compilation."""

    kind: GrammarKind
    text: str
