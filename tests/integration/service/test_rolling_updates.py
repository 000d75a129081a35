"""New weights on one worker after another, while the others serve."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router.config.choices import Mode, UpdateMode
from router.dispatch.weights.weight_updates import UpdateFailed
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import (
    PROMPT,
    Changed,
    Streamed,
    agrees,
    ask,
    cached,
    continued,
    ids_of,
)

FLEETS = [(Mode.MIXED, 2), (Mode.DISAGG, 1), (Mode.DISAGG, 2), (Mode.ADAPTIVE, 1)]


@pytest.fixture(params=FLEETS, ids=lambda fleet: f"{fleet[0].value}-{fleet[1]}")
async def fleet(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    mode, each = request.param
    async with local_cluster(small, mode, each=each) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


async def test_workers_are_updated_while_others_answer(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    """Every answer is of the old weights, then of the new ones; none waits for the end of the update."""
    answered_meanwhile = 0
    going = True
    updating = asyncio.Event()

    async def keep_asking(number: int) -> list[tuple[list[int], list[int]]]:
        nonlocal answered_meanwhile
        answers = []
        while going:
            prompt = [*PROMPT[:40], 90 + number, *range(10, 20)]
            answers.append((prompt, ids_of(await ask(fleet, 30, prompt))))
            answered_meanwhile += updating.is_set()
        return answers

    askers = [asyncio.create_task(keep_asking(number)) for number in range(4)]
    folders = [changed.folder, small.folder]
    for turn in range(4):
        await asyncio.sleep(0.2)
        updating.set()
        done = await fleet.weights.update(str(folders[turn % 2]), str(turn))
        updating.clear()
        assert (done.how, done.paused) == (UpdateMode.ROLLING, False)
        assert {s.info.served.tag for s in fleet.registry.sessions()} == {done.served.tag}
    going = False
    every = [pair for asker in askers for pair in await asker]
    assert answered_meanwhile
    models = [small.model, changed.model]
    for prompt, answer in every:
        assert len(answer) == 30
        assert any(agrees(answer, prompt, order) for order in (models, models[::-1]))


async def test_after_a_rolling_update_all_answers_are_those_of_a_fresh_start(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    assert ids_of(await ask(fleet, 12)) == continued(small.model, PROMPT, 12)
    await fleet.weights.update(str(changed.folder), "2")
    answers = [await ask(fleet, 12) for _ in range(6)]
    assert all(ids_of(answer) == continued(changed.model, PROMPT, 12) for answer in answers)
    assert cached(answers[0]) == 0
    assert cached(answers[-1]) > 0


async def test_a_kept_stream_goes_on_with_the_new_weights(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    answers = [Streamed(fleet, 600) for _ in range(4)]
    for answer in answers:
        await answer.has(5)
    await fleet.weights.update(str(changed.folder))
    for answer in answers:
        await answer.ended()
        assert (len(answer.ids), answer.finish) == (600, "length")
        at = next((i for i, (a, b) in enumerate(zip(answer.ids, old(small), strict=True)) if a != b), 600)
        assert 5 <= at < 600, "the update came after the answer"
        rest = continued(changed.model, [*PROMPT, *answer.ids[:at]], 20)
        assert answer.ids[at : at + 20] == rest[: 600 - at]


_OLD: list[int] = []


def old(small: SmallModel) -> list[int]:
    _OLD[:] = _OLD or continued(small.model, PROMPT, 600)
    return _OLD


async def test_a_worker_that_refuses_takes_all_back_to_the_old_weights(
    fleet: LocalCluster, small: SmallModel, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = fleet.registry.sessions()[-1]
    update = refuses.update_weights

    async def not_here(request: Any) -> Any:
        request.weights.folder = request.weights.folder and "/not/here"
        return await update(request)

    monkeypatch.setattr(refuses, "update_weights", not_here)
    with pytest.raises(UpdateFailed, match=rf"{refuses.worker_id}: .*/not/here"):
        await fleet.weights.update(str(changed.folder))
    assert {session.info.served.tag for session in fleet.registry.sessions()} == {""}
    assert ids_of(await ask(fleet, 5)) == continued(small.model, PROMPT, 5)
    monkeypatch.undo()
    await fleet.weights.update(str(changed.folder))
    assert ids_of(await ask(fleet, 5)) == continued(changed.model, PROMPT, 5)


async def test_a_worker_that_reads_other_weights_than_the_first_one_takes_the_old_ones_back(
    fleet: LocalCluster, small: SmallModel, changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a folder of the same name on another machine."""
    elsewhere = tmp_path / "model"
    shutil.copytree(small.folder, elsewhere)
    refuses = fleet.registry.sessions()[-1]
    update = refuses.update_weights

    async def other(request: Any) -> Any:
        request.weights.folder = request.weights.folder and str(elsewhere)
        return await update(request)

    monkeypatch.setattr(refuses, "update_weights", other)
    with pytest.raises(UpdateFailed, match="elsewhere"):
        await fleet.weights.update(str(changed.folder))
    assert {session.info.served.tag for session in fleet.registry.sessions()} == {""}
    assert ids_of(await ask(fleet, 5)) == continued(small.model, PROMPT, 5)
