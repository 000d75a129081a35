"""Signals: the first asks, and whatever is under way is ended in order."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import signal
import subprocess
import sys

import psutil
import pytest

from router.command.shutdown import Interrupted, Shutdown


@pytest.fixture
async def shutdown() -> Shutdown:
    shutdown = Shutdown()
    shutdown.install()
    return shutdown


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_a_request(shutdown: Shutdown, signal_: signal.Signals) -> None:
    os.kill(os.getpid(), signal_)
    async with asyncio.timeout(30):
        assert await shutdown.unless(asyncio.sleep(60, "slept")) is None


async def test_the_second_signal_of_a_drain_is_told_and_only_the_third_ends_the_process(
    shutdown: Shutdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr("router.command.shutdown.os._exit", exits.append)
    os.kill(os.getpid(), signal.SIGINT)
    await shutdown.unless(asyncio.sleep(60))
    again = shutdown.again()
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(30):
        await again.wait()
    assert not exits
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(30):
        while not exits:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert exits == [128 + signal.SIGINT]


async def test_work_that_ends_before_a_signal_has_its_result(shutdown: Shutdown) -> None:
    assert await shutdown.unless(asyncio.sleep(0, "slept")) == "slept"


async def test_work_that_is_done_in_time_returns_its_result(shutdown: Shutdown) -> None:
    async def work() -> int:
        return 7

    assert await shutdown.unless_requested(work()) == 7


async def test_work_that_fails_raises_its_own_error(shutdown: Shutdown) -> None:
    async def work() -> int:
        raise KeyError("model")

    with pytest.raises(KeyError):
        await shutdown.unless_requested(work())


async def test_a_signal_cancels_the_work_and_lets_it_clean_up(shutdown: Shutdown) -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        finally:
            cleaned = True

    with pytest.raises(Interrupted):
        await shutdown.unless_requested(work())
    assert cleaned


async def test_sighup_reloads_and_ends_nothing(shutdown: Shutdown) -> None:
    reloaded = asyncio.Event()
    shutdown.on_reload = reloaded.set
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(30):
        assert await shutdown.unless(reloaded.wait())


BEFORE_THE_HANDLERS = """
import asyncio, os, signal
from router.command.shutdown import Shutdown, hangups_held

async def main():
    reloaded = asyncio.Event()
    shutdown = Shutdown()
    shutdown.on_reload = reloaded.set
    shutdown.install()
    assert await shutdown.unless(asyncio.wait_for(reloaded.wait(), 5))

with hangups_held():
    os.kill(os.getpid(), signal.SIGHUP)
    asyncio.run(main())
"""


def test_a_sighup_before_the_handlers_waits_for_them() -> None:
    """In a process with one thread, as at the start: another one would take the signal."""
    assert subprocess.run([sys.executable, "-c", BEFORE_THE_HANDLERS]).returncode == 0


ON_A_TERMINAL = """
import asyncio
from router.command.shutdown import Shutdown

async def main():
    shutdown = Shutdown()
    shutdown.on_reload = lambda: print("reloads", flush=True)
    shutdown.install()
    print("runs", flush=True)
    print("ended" if await shutdown.unless(asyncio.sleep(60, "slept")) is None else "went on", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("before", "said"), [("", ["runs", "reloads", "ended"]), ("exec nohup ", ["runs", "reloads", "reloads"])]
)
def test_a_closed_terminal_ends_a_router_that_was_started_there_unless_under_nohup(
    before: str, said: list[str]
) -> None:
    output, writing = os.pipe()
    leader, terminal = pty.fork()
    if not leader:
        os.dup2(writing, 3)
        command = [*before.split()[1:], sys.executable, "-c", ON_A_TERMINAL]
        os.execvp("sh", ["sh", "-c", shlex.join(command) + " >&3"])
    os.close(writing)
    with os.fdopen(output) as lines:
        assert lines.readline() == "runs\n"
        (child,) = psutil.Process(leader).children() or [psutil.Process(leader)]
        child.send_signal(signal.SIGHUP)
        assert lines.readline() == "reloads\n"
        os.close(terminal)
        child.send_signal(signal.SIGHUP)  # as a shell does
        assert lines.readline() == f"{said[2]}\n"
        if child.is_running() and said[2] != "ended":
            child.kill()
    os.waitpid(leader, 0)
