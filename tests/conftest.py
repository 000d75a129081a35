"""How Hypothesis runs here: without a clock, since two busy cores are slow at random, and always the same.

A change is judged by what it changed: `make test` draws the same examples each time. `make soak` draws new
ones (`--hypothesis-profile=soak`).
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("test"), derandomize=False)
settings.load_profile("test")
