"""Checks of grammars: in other processes, whose time and memory are limited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.grammar.grammar import Grammar, GrammarKind
from router.api.generation.params.constraint import Constraint, ConstraintChecks
from router.api.generation.tenants import CURRENT_TENANT, Tenant
from router.errors import InvalidRequest

DIVISORS = "{}, {}".format('{"anyOf": [{"multipleOf": 7919}]}', '{"anyOf": [{"multipleOf": 7907}]}')
EXPLOSION = f'{{"allOf": [{DIVISORS}]}}'
"""Minutes to compile."""


def schema(text: str) -> Constraint:
    return Constraint(Grammar(GrammarKind.JSON_SCHEMA, text), "response_format")


def ebnf(text: str) -> Constraint:
    return Constraint(Grammar(GrammarKind.EBNF, text), "grammar")


@pytest.fixture
async def checks() -> AsyncIterator[ConstraintChecks]:
    checks = ConstraintChecks()
    yield checks
    await checks.close()


@pytest.mark.parametrize("constraint", [schema(EXPLOSION), ebnf(f"start: %json {EXPLOSION}")])
async def test_a_grammar_that_explodes_is_refused_and_the_next_one_is_checked(
    checks: ConstraintChecks, constraint: Constraint
) -> None:
    with pytest.raises(InvalidRequest, match="to check it takes more than") as refused:
        await checks.check(constraint)
    assert refused.value.param == constraint.param
    await checks.check(schema('{"type": "object"}'))
    with pytest.raises(InvalidRequest, match="array of names"):
        await checks.check(schema('{"required": "a"}'))


async def test_a_check_whose_request_is_cancelled_ends_its_process(checks: ConstraintChecks) -> None:
    slow = asyncio.create_task(checks.check(schema(EXPLOSION)))
    while (pid := _pid(checks)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    slow.cancel()
    await asyncio.wait([slow])
    await _until_gone(pid)
    await checks.check(schema('{"type": "object"}'))


async def test_grammars_of_one_tenant_do_not_delay_those_of_another(checks: ConstraintChecks) -> None:
    slow = [asyncio.create_task(_check_as("slow", checks, f"{EXPLOSION} ".ljust(300 + i))) for i in range(3)]
    await asyncio.sleep(0.01)
    await _check_as("other", checks, '{"type": "object"}')
    assert not any(task.done() for task in slow[1:])
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)


async def test_a_process_that_was_ended_between_checks_is_started_again(checks: ConstraintChecks) -> None:
    await checks.check(schema('{"type": "object"}'))
    pid = _pid(checks)
    assert pid is not None
    os.kill(pid, 9)
    await _until_gone(pid)
    await checks.check(schema('{"type": "array"}'))
    assert _pid(checks) not in (None, pid)


async def test_closed_checks_leave_no_process(checks: ConstraintChecks) -> None:
    await checks.check(schema('{"type": "object"}'))
    pid = _pid(checks)
    assert pid is not None
    await checks.close()
    await _until_gone(pid)


async def _check_as(name: str, checks: ConstraintChecks, text: str) -> None:
    CURRENT_TENANT.set(Tenant(name))
    await checks.check(schema(text))


def _pid(checks: ConstraintChecks) -> int | None:
    """Id of a process that checks, or did."""
    return next((one.pid for one in checks.processes if one.pid is not None), None)


async def _until_gone(pid: int) -> None:
    """Ended and reaped."""
    async with asyncio.timeout(20.0):
        while _exists(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
