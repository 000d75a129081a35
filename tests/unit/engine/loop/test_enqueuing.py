"""When the device is told of a step, and when the tokens of the one before leave the engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import FakeRunner


def decoding_engine(looks: int = 0) -> tuple[Engine, FakeRunner]:
    """Three requests decode; the device has been told how their next step begins."""
    engine = make_engine(overlap=True)
    runner: Any = engine.runner
    runner.looks = looks
    for id in range(3):
        engine.submit(make_request(id, [id, 7, 9], ignore_eos=True))
    engine.step()
    assert len(engine.step().tokens) == 3
    return engine, runner


def test_tokens_do_not_wait_until_the_next_step_is_enqueued() -> None:
    engine, runner = decoding_engine()
    assert runner.enqueuing is not None
    assert not runner.enqueuing.enqueued
    engine.proceed()
    assert runner.enqueuing.enqueued


@pytest.mark.parametrize(("looks", "enqueued"), [(1, False), (2, False), (5, True)])
def test_the_next_step_is_enqueued_while_its_predecessor_runs(looks: int, enqueued: bool) -> None:
    _, runner = decoding_engine(looks)
    assert runner.enqueuing is not None
    assert runner.enqueuing.enqueued is enqueued
