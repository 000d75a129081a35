"""What a start shows, and the time that each of its stages takes."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from common.progress import StageTimes
from router.command.progress import StartupDisplay


def test_a_stage_lasts_until_the_next_begins() -> None:
    now = 10.0
    stages = StageTimes("importing", lambda: now)
    now = 11.5
    stages.enter("loading")
    now = 12.0
    stages.enter("loading")
    now = 14.0

    assert stages.until_now() == (("importing", 1.5), ("loading", 2.5))


def test_without_a_terminal_each_stage_that_ended_is_a_line() -> None:
    written = io.StringIO()
    with StartupDisplay(Console(file=written)) as display:
        with display.stage("Ray"):
            pass
        display.show("decode-0", "starting")
        display.done("decode-0", "ready")

    assert written.getvalue().splitlines() == ["Ray: 0.0 s", "decode-0: ready"]


def test_without_a_terminal_a_slow_stage_of_a_worker_is_said_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("router.command.progress.time.monotonic", lambda: now)
    written = io.StringIO()
    display = StartupDisplay(Console(file=written))
    for _ in range(50):
        left = 2 if now < 8 else 1
        display.loading("decode-0", f"Compiling: FA3, window: {2 - left} of 2, {now:.0f} s", 0, 0)
        now += 0.5
    display.loading("decode-0", "Warming up", 0, 0)
    now += 1
    display.loading("decode-0", "Warming up", 0, 0)

    assert written.getvalue().splitlines() == [
        "decode-0: compiling: FA3, window: 1 of 2, 10 s, since 10 s",
        "decode-0: compiling: FA3, window: 1 of 2, 20 s, since 20 s",
    ]


def test_lines_of_a_start_can_be_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    written = io.StringIO()
    caplog.set_level(logging.WARNING)
    caplog.handler.setLevel(logging.NOTSET)
    with StartupDisplay(Console(file=written), as_log=True) as display:
        with display.stage("Ray"):
            pass
        display.of("small").done("decode-0", "ready")
        display.say("workers: decode-0")
    assert written.getvalue() == ""
    assert caplog.messages == ["Ray: 0.0 s", "small: decode-0: ready", "workers: decode-0"]


def test_the_summary_has_the_stages_that_took_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("router.command.progress.time.monotonic", lambda: now)
    display = StartupDisplay(Console(file=io.StringIO()))
    with display.stage("model m"):
        now += 0.01
    with display.stage("Ray"):
        now += 2.0
    with display.stage("workers"):
        now += 3.5

    assert display.after() == "after 5.5 s (Ray 2.0 s, workers 3.5 s)"
