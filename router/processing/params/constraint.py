"""Grammar constraints of requests, and the check that workers can enforce them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.source import check_grammar
from router.errors import InvalidRequest
from rpc.baton.v1 import sampling_pb2

_KINDS: Final = {
    GrammarKind.JSON_SCHEMA: sampling_pb2.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: sampling_pb2.GRAMMAR_KIND_REGEX,
    GrammarKind.CHOICE: sampling_pb2.GRAMMAR_KIND_CHOICE,
    GrammarKind.EBNF: sampling_pb2.GRAMMAR_KIND_EBNF,
}

_KEPT: Final = 256
_INLINE_CHARACTERS: Final = 256
"""Longest grammar that is checked inline, in at most a millisecond; longer ones are checked in a thread."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar that an output must follow."""

    grammar: Grammar
    param: str
    """The field of the request that it comes from, for error messages."""


class ConstraintChecks:
    """Checks constraints before anything is sent to a worker. Accepted grammars are remembered."""

    def __init__(self) -> None:
        self._accepted: OrderedDict[Grammar, None] = OrderedDict()

    async def check(self, constraint: Constraint) -> None:
        """Raise InvalidRequest, naming the field, if the grammar cannot be compiled."""
        grammar = constraint.grammar
        if grammar in self._accepted:
            self._accepted.move_to_end(grammar)
            return
        try:
            if len(grammar.text) <= _INLINE_CHARACTERS:
                check_grammar(grammar)
            else:
                await asyncio.to_thread(check_grammar, grammar)
        except GrammarError as error:
            message = f"{constraint.param}: {error}."
            raise InvalidRequest(message, param=constraint.param) from None
        self._accepted[grammar] = None
        while len(self._accepted) > _KEPT:
            self._accepted.popitem(last=False)


def grammar_to_proto(grammar: Grammar) -> sampling_pb2.Grammar:
    return sampling_pb2.Grammar(kind=_KINDS[grammar.kind], text=grammar.text)


def constraint_from_proto(message: sampling_pb2.Grammar, param: str) -> Constraint:
    """Raises InvalidRequest for an unknown kind."""
    for kind, number in _KINDS.items():
        if number == message.kind:
            return Constraint(Grammar(kind, message.text), param)
    raise InvalidRequest(
        f"{param}.kind must be one of GrammarKind, not {message.kind}.", param=f"{param}.kind"
    )
