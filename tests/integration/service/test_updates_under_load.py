"""Many updates of the weights under load, by two routers, while workers are killed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from router.config.choices import Mode, UpdateMode
from router.errors import RouterError
from tests.faults.support.bounds import bounded
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import (
    PROMPT,
    Changed,
    ask,
    cached,
    continued,
    ids_of,
    spans_agree,
)

CLIENTS = 6
TOKENS = 60


@dataclass(frozen=True)
class Answered:
    prompt: list[int]
    answer: dict[str, Any]
    served: int
    """Number of the update that was complete when the request was sent."""

    def check(self, models: list[Any]) -> None:
        """Each token is that of its weights after all tokens before it, and no weights are older than those
        of the last update before the request."""
        (choice,) = self.answer["choices"]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (TOKENS, "length")
        numbers = [_number(span) for span in choice["weight_versions"]]
        assert min(numbers) >= self.served
        spans = [{**span, "version": str(_number(span) % 2)} for span in choice["weight_versions"]]
        by_version = {str(i): model for i, model in enumerate(models)}
        assert spans_agree(choice["token_ids"], spans, by_version, self.prompt)


def _number(span: dict[str, Any]) -> int:
    return 0 if span["version"] == "default" else int(span["version"])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("mode", "each"), [(Mode.MIXED, 3), (Mode.DISAGG, 2)], ids=str)
@bounded("updates", here=6, soak=100)
async def test_no_page_crosses_versions_and_no_request_is_lost_or_stale(
    small: SmallModel, changed: Changed, mode: Mode, each: int, updates: int
) -> None:
    draw, going, served, failed = random.Random(5), True, 0, 0
    folders, models = [small.folder, changed.folder], [small.model, changed.model]
    async with local_cluster(small, mode, each=each, names=("router-1", "router-2")) as cluster:
        routers = [cluster, *cluster.others]

        async def keep_asking(number: int) -> list[Answered]:
            """With prefixes that others have asked for too, with other weights."""
            answers: list[Answered] = []
            while going:
                prompt, before = [*PROMPT[:48], 90 + len(answers) % 3, *range(10, 20)], served
                router = routers[(number + len(answers)) % len(routers)]
                answer = await ask(router, TOKENS, prompt, return_weight_versions=True)
                answers.append(Answered(prompt, answer, before))
            return answers

        async def kill(worker: Any) -> None:
            await asyncio.sleep(draw.random() * 0.3)
            await worker.restart()

        askers = [asyncio.create_task(keep_asking(number)) for number in range(CLIENTS)]
        for number in range(1, updates + 1):
            killing = asyncio.create_task(kill(draw.choice(cluster.workers))) if number % 3 == 0 else None
            how = UpdateMode.TOGETHER if number % 5 == 0 else UpdateMode.ROLLING
            try:
                await routers[number % 2].weights.update(str(folders[number % 2]), str(number), how=how)
                served = number
            except RouterError as error:
                failed += 1
                print(f"update {number} ({how.value}): {error}")
            if killing is not None:
                await killing
            await asyncio.sleep(draw.random() * 0.2)
        going = False
        every = [one for asker in askers for one in await asker]
        await check_settled(cluster, str(folders[0]), models[0])
    for one in every:
        one.check(models)
    hits = sum(cached(one.answer) > 0 for one in every)
    spanning = sum(len(one.answer["choices"][0]["weight_versions"]) > 1 for one in every)
    print(f"\n{len(every)} answers, {spanning} over an update, {hits} cached; {failed} updates failed")
    assert len(every) > updates
    assert failed <= updates // 3


async def check_settled(cluster: LocalCluster, folder: str, model: Any) -> None:
    """The next update holds on every worker, and all pages are back."""
    for router in (cluster, *cluster.others):
        assert await router.registry.wait_for_all(30.0), router.registry.complaints()
    async with asyncio.timeout(60.0):
        while True:
            with suppress(RouterError):
                done = await cluster.weights.update(folder, "0")
                break
            await asyncio.sleep(0.5)
        while {s.info.served.tag for s in cluster.registry.sessions()} != {done.served.tag}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for router in (cluster, *cluster.others):
        assert ids_of(await ask(router, 12)) == continued(model, PROMPT, 12)
    await cluster.all_pages_back()
