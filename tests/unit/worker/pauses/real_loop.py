"""An engine loop on its own thread, whose device takes five milliseconds a step; as a command, its process.

The process prints "ready", and a JSON line for each slow step: its cause and its seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

from engine.loop.engine import Engine
from engine.loop.pauses.slow_steps import SlowStep
from tests.engine_config import engine_config
from tests.unit.engine.engines import make_request
from tests.unit.engine.fake_runner import FakeRunner, FakeStep, Work
from tests.unit.worker.handlers import handled
from worker.process.engine_loop import EngineLoop
from worker.session.inbox import Inbox

_STEP_S = 0.005


class DeviceRunner(FakeRunner):
    def launch(self, step: list[Work]) -> FakeStep:
        launched = super().launch(step)
        result = launched.result
        launched.result = lambda: (time.sleep(_STEP_S), result())[1]  # type: ignore[method-assign]
        return launched


@contextmanager
def running_loop(on_slow: Callable[[SlowStep], object]) -> Iterator[Inbox]:
    """Decodes until the end of the block, unless that takes longer than thousands of tokens do."""
    config = engine_config(device="cuda", overlap=True, page_size=4, num_pages=2000, chunk_budget=16)
    runner: Any = DeviceRunner(config.page_size, config.num_pages)
    engine = Engine(config, runner=runner)
    engine.config = engine_config(overlap=True)  # there is no GPU whose device the thread could enter
    parts, metrics, inbox = handled(engine, clock=time.monotonic), Mock(slow=on_slow), Inbox()
    loop = EngineLoop(
        engine, parts.handler, inbox, parts.outbox, metrics, clock=time.monotonic, on_death=Mock()
    )
    loop.start()
    inbox.ask(lambda: engine.submit(make_request(1, [5, 6], max_tokens=4000, ignore_eos=True))).result()
    time.sleep(0.5)
    try:
        yield inbox
    finally:
        loop.stop()


def main() -> None:
    def show(slow: SlowStep) -> None:
        print(json.dumps({"cause": slow.cause.value, "seconds": slow.seconds}), flush=True)

    with running_loop(show):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
