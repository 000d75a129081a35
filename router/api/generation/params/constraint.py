"""Grammar constraints of requests, and the check that workers can enforce them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from common.limits.process import ProcessTurns
from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from router.api.generation.params.check_process import CheckProcess
from router.api.generation.tenants import CURRENT_TENANT
from router.errors import InvalidRequest
from rpc.baton.v1 import sampling_pb2

_KINDS: Final = {sampling_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind.name}"): kind for kind in GrammarKind}

_KEPT: Final = 256
_PROCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar that an output must follow."""

    grammar: Grammar
    param: str
    """The field of the request that it comes from, for error messages."""


class ConstraintChecks:
    """Checks constraints before anything is sent to a worker. Accepted grammars are remembered.

    Checks run in other processes, one at a time for each tenant: a tenant whose grammars take long delays its
    own.
    """

    def __init__(self) -> None:
        self._accepted: Final[OrderedDict[Grammar, None]] = OrderedDict()
        self._turns: Final = ProcessTurns([CheckProcess() for _ in range(_PROCESSES)], share=1)

    @property
    def processes(self) -> Sequence[CheckProcess]:
        return self._turns.processes

    async def check(self, constraint: Constraint) -> None:
        """Raise InvalidRequest, naming the field, if the grammar cannot be compiled."""
        grammar = constraint.grammar
        if self._knows(grammar):
            return
        async with self._turns.process(CURRENT_TENANT.get().name) as process:
            if self._knows(grammar):
                return
            try:
                await process.check(grammar)
            except GrammarError as error:
                message = f"{constraint.param}: {error}."
                raise InvalidRequest(message, param=constraint.param) from None
        self._accepted[grammar] = None
        while len(self._accepted) > _KEPT:
            self._accepted.popitem(last=False)

    async def close(self) -> None:
        """End the processes."""
        await self._turns.close()

    def _knows(self, grammar: Grammar) -> bool:
        known = grammar in self._accepted
        if known:
            self._accepted.move_to_end(grammar)
        return known


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
