"""The engine's thread: in which order a turn does things."""

from __future__ import annotations

import math
import queue
import time
from unittest.mock import Mock

import pytest

from engine.events import StepOutput
from worker.engine_loop import EngineDied, EngineLoop
from worker.inbox import Inbox


def test_tokens_are_sent_before_the_device_is_told_the_rest_of_its_step() -> None:
    parts = Mock()
    parts.engine.plan_at.return_value = -math.inf
    parts.engine.step.return_value = StepOutput(started=[], num_tokens=1)
    loop = EngineLoop(
        parts.engine,
        parts.role,
        parts.inbox,
        parts.outbox,
        parts.metrics,
        clock=lambda: 0.0,
        on_death=parts.on_death,
    )
    loop._turn()
    calls = [name for name, *_ in parts.method_calls]
    order = ["engine.step", "role.on_step", "outbox.flush", "engine.proceed"]
    assert [name for name in calls if name in order] == order


class Panic(BaseException):
    """As libraries in other languages raise: no Exception."""


@pytest.mark.parametrize("error", [Panic("at the disco"), SystemExit(1), RuntimeError("a bug")])
def test_whatever_ends_the_engine_is_told_at_once(error: BaseException) -> None:
    parts, inbox = Mock(), Inbox()
    parts.engine.plan_at.return_value = -math.inf
    parts.engine.step.side_effect = error
    deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
    loop = EngineLoop(
        parts.engine,
        parts.role,
        inbox,
        parts.outbox,
        parts.metrics,
        clock=time.monotonic,
        on_death=deaths.put,
    )
    loop.start()
    death = deaths.get(timeout=10.0)
    assert type(error).__name__ in str(death)
    parts.outbox.fail.assert_called_once()
    question = inbox.ask(lambda: 42)
    with pytest.raises(EngineDied):
        question.result(10.0)
    loop.stop()
