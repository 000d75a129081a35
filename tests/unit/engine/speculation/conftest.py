"""Answers without drafts, of the `model` of a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.core.sampling_params import SamplingParams
from tests.faults.support.small_model import SmallModel
from tests.unit.engine.speculation.drafting import answers, engine_with, greedy, requests


@pytest.fixture(scope="module", params=["greedy", "sampled"])
def samplings(request: pytest.FixtureRequest) -> list[SamplingParams]:
    if request.param == "greedy":
        return greedy(30)
    return [replace(one, temperature=1.0, top_p=0.9, seed=k) for k, one in enumerate(greedy(30))]


@pytest.fixture(scope="module")
def plain(model: SmallModel, samplings: list[SamplingParams]) -> Iterator[dict[int, list[Any]]]:
    engine = engine_with(model.folder, None)
    yield answers(engine, requests(samplings))
    engine.close()
