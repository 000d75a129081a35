"""How Hypothesis runs here, and what ends a test that hangs.

Hypothesis has no clock, since two busy cores are slow at random. A change is judged by what it changed: `make
test` draws the same examples each time, and `make test-all` more of them (`--hypothesis-profile=thorough`).
`make soak` draws new ones (`--hypothesis-profile=soak`).
"""

from __future__ import annotations

import faulthandler

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

settings.register_profile(
    "thorough", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("test", settings.get_profile("thorough"), max_examples=40)
settings.register_profile("soak", settings.get_profile("thorough"), derandomize=False)
settings.load_profile("test")


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Go on watching a test that failed. pytest and pytest-timeout stop their timers then, but the cleanup
    may hang: an event loop that closes waits for its threads without limit."""
    timeout = float(node.config.getini("faulthandler_timeout") or 0)
    if timeout and isinstance(node, pytest.Item):
        stderr = node.config.stash[fault_handler_stderr_fd_key]
        ends = node.config.getini("faulthandler_exit_on_timeout")
        faulthandler.dump_traceback_later(timeout, file=stderr, exit=ends)
