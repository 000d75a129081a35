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

_KINDS: Final = {sampling_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind.name}"): kind for kind in GrammarKind}

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
    return sampling_pb2.Grammar(kind=f"GRAMMAR_KIND_{grammar.kind.name}", text=grammar.text)


def constraint_from_proto(message: sampling_pb2.Grammar, param: str) -> Constraint:
    """Raises InvalidRequest for an unknown kind."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequest(
            f"{param}.kind must be one of GrammarKind, not {message.kind}.", param=f"{param}.kind"
        )
    return Constraint(Grammar(kind, message.text), param)
