"""The engine's thread: in which order a turn does things."""

from __future__ import annotations

import math
from unittest.mock import Mock

from engine.events import StepOutput
from worker.engine_loop import EngineLoop


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
