"""What a worker computes with, over updates that succeed, are refused, or fail half-way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import EngineBusy, RefillRefused, WeightsIncomplete
from rpc.baton.v1 import worker_pb2
from worker.weights import WorkerWeights

NEW = worker_pb2.ServedWeights(tag="t1", folder="/new", version="1")


class ScriptedEngine:
    """Raises the next error of a script at each refill."""

    def __init__(self, *errors: Exception | None) -> None:
        self.config = SimpleNamespace(model_path=Path("/start"))
        self.weights = WeightsIdentity("digest")
        self.refilled: list[NewWeights] = []
        self._errors = list(errors)

    def refill(self, new: NewWeights) -> None:
        self.refilled.append(new)
        if (error := self._errors.pop(0)) is not None:
            raise error
        self.weights = WeightsIdentity(f"digest of {new.checkpoint}", new.version)


def weights_of(engine: Any) -> WorkerWeights:
    return WorkerWeights(engine, identified=True)


def accepted(weights: WorkerWeights) -> list[str]:
    return [tag for tag in ("", "t1", "t2") if weights.refusal(tag) is None]


def test_requests_of_other_weights_are_refused_after_an_update() -> None:
    engine = ScriptedEngine(None)
    weights = weights_of(engine)
    assert accepted(weights) == [""]

    report = weights.update(NEW, lambda: True)

    assert report is not None
    assert (report.refused, report.weights.digest) == ("", "digest of /new")
    assert accepted(weights) == ["t1"]
    assert weights.identity() == "digest of /new/1"
    assert weights.update(NEW, lambda: False) == report  # it is done already
    assert engine.refilled == [NewWeights(Path("/new"), "1")]


def test_the_weights_of_the_start_come_back_by_an_update_without_a_folder() -> None:
    engine = ScriptedEngine(None, None)
    weights = weights_of(engine)
    weights.update(NEW, lambda: True)

    weights.update(worker_pb2.ServedWeights(), lambda: True)

    assert engine.refilled[-1] == NewWeights(Path("/start"))
    assert accepted(weights) == [""]


@pytest.mark.parametrize("error", [None, EngineBusy("pages")])
def test_an_update_waits_for_requests_and_pages(error: EngineBusy | None) -> None:
    engine = ScriptedEngine(error)
    weights = weights_of(engine)
    assert weights.update(NEW, lambda: error is not None) is None
    assert accepted(weights) == [""]


def test_a_refused_update_changes_nothing() -> None:
    weights = weights_of(ScriptedEngine(RefillRefused("another shape")))
    report = weights.update(NEW, lambda: True)
    assert report is not None
    assert (report.refused, report.incomplete) == ("another shape", False)
    assert accepted(weights) == [""]


def test_no_request_is_accepted_after_an_error_that_may_have_left_any_weights() -> None:
    weights = weights_of(ScriptedEngine(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        weights.update(NEW, lambda: True)
    assert accepted(weights) == []


def test_no_request_is_accepted_between_an_update_that_failed_half_way_and_the_next_one() -> None:
    weights = weights_of(ScriptedEngine(WeightsIncomplete("torn"), None))
    report = weights.update(NEW, lambda: True)
    assert report is not None
    assert (report.refused, report.incomplete) == ("torn", True)
    assert accepted(weights) == []

    assert weights.update(worker_pb2.ServedWeights(), lambda: True) is not None
    assert accepted(weights) == [""]
