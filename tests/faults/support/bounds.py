"""How long the proofs run: a bounded form with every change, and the whole one in `make soak`."""

from __future__ import annotations

import os
from typing import Any

import pytest


def bounded(name: str, here: float, soak: float) -> Any:
    """Parametrizes a test with `here`, and with `soak` for `make soak`.

    BATON_SOAK_<NAME> in the environment takes the place of `soak`, as in
    `BATON_SOAK_SECONDS=28800 make soak`.
    """
    long = type(soak)(os.environ.get(f"BATON_SOAK_{name.upper()}", soak))
    return pytest.mark.parametrize(
        name,
        [
            pytest.param(here, id="bounded"),
            pytest.param(long, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
        ],
    )
