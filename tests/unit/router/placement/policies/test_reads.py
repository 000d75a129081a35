"""Reads go to the worker of any role that computes them soonest, and stay together where their prefix is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.placement import (
    PRIOR,
    ClusterView,
    Health,
    LinkView,
    Preference,
    PromptWork,
    QuarantinedPages,
    ReadPlacement,
    RequestView,
    WorkerView,
)
from tests.unit.router.placement.account.test_room import EMPTY
from tests.unit.router.placement.views import loaded


def view(*workers: WorkerView) -> ClusterView:
    return ClusterView(now=1.0, workers=workers, kv_bytes_per_token=1000, link=LinkView(1e9, 0.001))


def request(tokens: int = 1000, **fields: object) -> RequestView:
    return RequestView(prompt_tokens=tokens, expected_output=0, arrived=1.0, **fields)  # type: ignore[arg-type]


def worker(name: str, prefers: Preference, queued: int = 0) -> WorkerView:
    prompts = (PromptWork(tokens=queued, computed=0, arrived=0.0),) if queued else ()
    return replace(loaded(name, prefers=prefers, prompts=prompts, room=EMPTY), step_time=PRIOR)


@pytest.mark.parametrize("idle", list(Preference))
def test_whatever_its_role_the_idle_worker_gets_it(idle: Preference) -> None:
    workers = [worker(role.value, role, 0 if role is idle else 8000) for role in Preference]
    placement = ReadPlacement().place(request(), view(*workers))
    assert placement.is_local
    assert placement.prefill_worker == idle.value


def test_it_stays_with_the_read_before_it_if_that_has_its_prefix() -> None:
    busy, idle = worker("busy", Preference.BOTH, 8000), worker("idle", Preference.BOTH)
    both, cached = view(busy, idle), {"busy": 900}
    assert ReadPlacement().place(request(cached=cached), both, "busy").prefill_worker == "busy"
    assert ReadPlacement().place(request(cached={"busy": 100}), both, "busy").prefill_worker == "idle"
    failed = request(cached=cached, avoid={"busy"})
    assert ReadPlacement().place(failed, both, "busy").prefill_worker == "idle"
    late = view(replace(busy, health=Health.LATE), idle)
    assert ReadPlacement().place(request(cached=cached), late, "busy").prefill_worker == "idle"


def test_a_read_that_only_pages_in_quarantine_could_hold_is_refused() -> None:
    ill = loaded("ill", room=replace(EMPTY, free_pages=50, quarantined_pages=50))
    with pytest.raises(QuarantinedPages):
        ReadPlacement().place(request(10_000), view(ill))
