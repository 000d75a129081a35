"""Adapters over fake workers: staged everywhere, visible at once, and each answer by one content."""

from __future__ import annotations

import asyncio

import pytest

from router.dispatch.adapters.adapters import AdapterNotLoaded, ServedAdapters
from router.dispatch.token_stream import TokenStream
from router.errors import InvalidRequest, NotFound, RouterError
from rpc.baton.v1 import worker_pb2
from tests.integration.adapting import adapting, give, until
from tests.integration.fake_cluster import PROMPT, Service, pair, sampling, service
from tests.integration.fake_worker import answer, decode_worker, digest_of
from tests.unit.router.cluster.key_values import KeyValues

LENGTH = 6


async def ask(served: Service, adapters: ServedAdapters, name: str) -> list[int]:
    """Tokens of an answer, which must be by the content that the name has now."""
    use = adapters.use(name)
    work = worker_pb2.Work(
        prompt=PROMPT,
        sampling=sampling(LENGTH),
        adapter=name,
        adapter_digest=use.adapter.digest,
        adapter_path=use.adapter.path,
    )
    tokens: list[int] = []

    def on_delta(delta: object) -> bool:
        tokens.extend(delta.token_ids)  # type: ignore[attr-defined]
        return False

    try:
        await served.dispatcher.generate(work, TokenStream(on_delta))
    finally:
        use.end()
    assert tokens == answer(PROMPT, LENGTH, use.adapter.digest)
    return tokens


async def test_an_adapter_is_on_every_worker_before_it_is_visible() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        decode.behaviour.waits_before.add("load")
        loading = asyncio.create_task(adapters.load("sql", "/sql"))
        await until(lambda: bool(prefill.loaded))
        with pytest.raises(NotFound):
            adapters.use("sql")
        decode.behaviour.waits_before.clear()
        adapter = await loading
        assert adapter.digest == digest_of("one")
        assert prefill.loaded == decode.loaded == {adapter.digest}
        await ask(served, adapters, "sql")
        reserve, submit = decode.commands("reserve")[0].reserve, prefill.commands("submit")[0].submit
        assert reserve.work.adapter_digest == submit.work.adapter_digest == adapter.digest


async def test_an_adapter_that_one_worker_refuses_is_refused_with_its_name_and_hurts_nobody() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served, adapting(served) as adapters:
        give(served.workers, "/good", "good")
        give(served.workers, "/bad", "bad")
        await adapters.load("good", "/good")
        decode.refused["/bad"] = "rank 64 is more than --max-lora-rank 16"
        with pytest.raises(AdapterNotLoaded, match=r"decode-0: rank 64 is more"):
            await adapters.load("bad", "/bad")
        with pytest.raises(NotFound):
            adapters.use("bad")
        await ask(served, adapters, "good")
        await until(lambda: prefill.loaded == {digest_of("good")})


async def test_contents_that_differ_between_workers_are_refused() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served, adapting(served) as adapters:
        prefill.adapters["/sql"], decode.adapters["/sql"] = "old", "new"
        with pytest.raises(AdapterNotLoaded, match="different contents"):
            await adapters.load("sql", "/sql")
        await until(lambda: not prefill.loaded and not decode.loaded)


async def test_a_worker_that_does_not_see_the_folder_gets_the_adapter_from_one_that_does() -> None:
    prefill, decode = pair()
    prefill.adapters_address = "prefill:1"
    async with service(prefill, decode) as served, adapting(served) as adapters:
        give([prefill], "/sql", "one")
        await adapters.load("sql", "/sql")
        assert prefill.loaded == decode.loaded == {digest_of("one")}
        await ask(served, adapters, "sql")
        assert not decode.commands("reserve")[0].reserve.work.adapter_sources, "it has the adapter"
        decode.loaded.clear()
        await decode.restart()
        await until(lambda: decode.loaded == {digest_of("one")})


async def test_a_request_says_which_workers_have_its_adapter_to_one_that_lacks_it() -> None:
    prefill, decode = pair()
    prefill.adapters_address = "prefill:1"
    async with service(prefill, decode) as served, adapting(served) as adapters:
        give([prefill], "/sql", "one")
        await adapters.load("sql", "/sql")
        decode.behaviour.waits_before.add("load")
        await decode.restart()
        await until(lambda: decode.epoch in [one.info.epoch for one in served.registry.sessions()])
        sent = len(decode.received)
        await ask(served, adapters, "sql")
        load, *_ = decode.received[sent:]
        assert load.load.digest == digest_of("one"), "it loads the adapter before the prompt is begun"
        [source] = decode.commands("reserve")[-1].reserve.work.adapter_sources
        assert source == load.load.sources[0]
        assert source.address == "prefill:1"
        decode.behaviour.waits_before.clear()


async def test_workers_that_see_other_contents_get_no_copy() -> None:
    workers = [decode_worker(name) for name in "abc"]
    async with service(*workers) as served, adapting(served) as adapters:
        for worker, content in zip(workers, ("old", "new"), strict=False):
            worker.adapters_address = f"{content}:1"
            worker.adapters["/sql"] = content
        with pytest.raises(AdapterNotLoaded, match="different contents"):
            await adapters.load("sql", "/sql")
        await until(lambda: not any(worker.loaded for worker in workers))


async def test_unknown_paths_and_known_names_have_statuses_of_their_own() -> None:
    async with service(decode_worker("d")) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        with pytest.raises(NotFound, match="No such file"):
            await adapters.load("sql", "/none")
        await adapters.load("sql", "/sql")
        for name in ("sql", "m", ""):
            with pytest.raises(InvalidRequest):
                await adapters.load(name, "/sql")
        with pytest.raises(NotFound):
            await adapters.unload("none")


async def test_a_reload_leaves_running_answers_their_content() -> None:
    worker = decode_worker("d")
    async with service(worker) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        await adapters.load("sql", "/sql")
        worker.behaviour.waits_before.add("token")
        running = asyncio.create_task(ask(served, adapters, "sql"))
        await until(lambda: bool(worker.live))
        give(served.workers, "/sql", "two")
        await adapters.load("sql", "/sql", in_place=True)
        later = asyncio.create_task(ask(served, adapters, "sql"))
        await until(lambda: len(worker.live) == 2)
        assert worker.loaded == {digest_of("one"), digest_of("two")}
        worker.behaviour.waits_before.clear()
        assert await running != await later
        await until(lambda: worker.loaded == {digest_of("two")})


async def test_unloading_waits_for_the_answers() -> None:
    worker = decode_worker("d")
    async with service(worker) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        await adapters.load("sql", "/sql")
        worker.behaviour.waits_before.add("token")
        running = asyncio.create_task(ask(served, adapters, "sql"))
        await until(lambda: bool(worker.live))
        unloading = asyncio.create_task(adapters.unload("sql"))
        await until(lambda: not adapters.names)
        await asyncio.sleep(0.2)
        assert worker.loaded
        assert not unloading.done()
        worker.behaviour.waits_before.clear()
        await running
        await unloading
        assert not worker.loaded


async def test_a_worker_that_starts_again_loads_the_adapter_for_a_request_or_before_one() -> None:
    first, second = decode_worker("a"), decode_worker("b")
    async with service(first, second) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        await adapters.load("sql", "/sql")
        second.behaviour.waits_before.add("load")
        await second.restart()
        await until(lambda: len(served.registry.sessions()) == 2)
        for _ in range(4):
            await ask(served, adapters, "sql")
        await until(lambda: second.loaded == first.loaded)
        second.loaded.clear()
        await second.restart()
        second.behaviour.waits_before.clear()
        await until(lambda: second.loaded == first.loaded)
        await until(lambda: all(session.adapters for session in served.registry.sessions()))
        for _ in range(4):
            await ask(served, adapters, "sql")
        assert any(command.submit.work.adapter_digest for command in second.commands("submit"))


async def test_a_worker_that_starts_later_with_another_content_computes_no_request_of_the_adapter() -> None:
    first, second = decode_worker("a"), decode_worker("b")
    async with service(first, second) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        await adapters.load("sql", "/sql")
        second.adapters["/sql"] = "two"
        await second.restart()
        await until(lambda: digest_of("two") in second.loaded or len(served.registry.sessions()) == 2)
        await until(lambda: not second.loaded)
        for _ in range(4):
            await ask(served, adapters, "sql")
        assert not second.loaded


async def test_a_request_is_tried_elsewhere_if_a_worker_has_lost_its_adapter() -> None:
    first, second = decode_worker("a"), decode_worker("b")
    async with service(first, second) as served, adapting(served) as adapters:
        give(served.workers, "/sql", "one")
        await adapters.load("sql", "/sql")
        first.loaded.clear()
        for _ in range(3):
            await ask(served, adapters, "sql")
        await until(lambda: bool(first.loaded))


async def test_two_routers_agree_and_count_each_others_answers() -> None:
    worker, store = decode_worker("d"), KeyValues()
    async with (
        service(worker, name="one") as one,
        adapting(one, store) as first,
        service(worker, name="two", starts=False) as two,
        adapting(two, store) as second,
    ):
        one.registry.other_routers = lambda: ["two"]  # type: ignore[method-assign]
        two.registry.other_routers = lambda: ["one"]  # type: ignore[method-assign]
        give([worker], "/sql", "one")
        await first.load("sql", "/sql")
        assert second.names["sql"].digest == digest_of("one")
        worker.behaviour.waits_before.add("token")
        running = asyncio.create_task(ask(two, second, "sql"))
        await until(lambda: bool(worker.live))
        give([worker], "/sql", "two")
        await first.load("sql", "/sql", in_place=True)
        assert second.names["sql"].digest == digest_of("two")
        unloading = asyncio.create_task(second.unload("sql"))
        await until(lambda: not first.names and not second.names)
        worker.behaviour.waits_before.clear()
        await running
        await unloading
        await until(lambda: not worker.loaded)
        with pytest.raises(RouterError):
            await ask(one, first, "sql")
