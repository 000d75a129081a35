"""The live page in a real browser, over real workers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from router.config.choices import Mode
from tests.browser import Page, browser_page
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

REQUEST = {"model": "small", "prompt": "one two three " * 40, "max_tokens": 24, "ignore_eos": True}


@asynccontextmanager
async def live_page(
    small: SmallModel, mode: Mode, *, requests: int = 3, **size: int
) -> AsyncIterator[tuple[LocalCluster, Page]]:
    async with browser_page() as page, local_cluster(small, mode) as cluster:
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            for _ in range(requests):
                (await client.post("/v1/completions", json=REQUEST, timeout=60)).raise_for_status()
        await page.open(cluster.url, **size)
        yield cluster, page
        if folder := os.environ.get("BATON_SCREENSHOTS"):
            for scheme in ("light", "dark"):
                await page.prefer(scheme)
                name = f"{mode.value}-{size.get('width', 1280)}-{scheme}.png"
                await page.screenshot(Path(folder) / name, whole=False)
        assert not page.errors
        assert not page.advice
        assert {urlsplit(url).netloc for url in page.requested} == {urlsplit(cluster.url).netloc}


async def test_the_page_shows_workers_links_figures_and_requests(small: SmallModel) -> None:
    async with live_page(small, Mode.DISAGG) as (_, page):
        await page.until("document.querySelectorAll('.request').length == 3")
        await page.until("document.querySelector('#links text')?.textContent")
        workers = await page.evaluate("[...document.querySelectorAll('.worker h3')].map(e => e.textContent)")
        assert workers == ["prefill-0", "decode-0"]
        states = "[...document.querySelectorAll('.worker .state')].map(e => e.textContent)"
        assert await page.evaluate(states) == ["ready", "ready"]
        assert await page.evaluate("document.querySelector('#connection').textContent") == "live"
        figures = await page.evaluate("document.querySelector('#figures').innerText")
        assert "TTFT p50" in figures
        assert "p99" in figures
        await page.evaluate("document.querySelector('.request summary').click()")
        opened = await page.until("document.querySelector('.request[open] .waterfall').innerText")
        assert "prefill-0 → decode-0" in opened
        assert "KV pushes" in opened


async def test_the_page_shows_reads_and_their_timelines(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED, requests=0) as (cluster, page):
        body = {"query": "one two three " * 40, "items": [" four", " five"], "label_token_ids": [7, 8]}
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            (await client.post("/v1/score", json=body, timeout=60)).raise_for_status()
        await page.until("document.querySelectorAll('.request').length == 2")
        assert "→ numbers" in await page.evaluate("document.querySelector('.request summary').innerText")
        assert "Read p50" in await page.evaluate("document.querySelector('#figures').innerText")
        await page.evaluate("document.querySelector('.request summary').click()")
        opened = await page.until("document.querySelector('.request[open] .waterfall').innerText")
        assert "numbers " in opened
        assert "first token" not in opened
        ended = await page.evaluate("document.querySelector('.request[open] p.muted').textContent")
        assert "ended with its numbers" in ended


async def test_the_chat_answers_with_its_timeline_on_a_phone(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED, width=390, height=844) as (_, page):
        await page.until("document.querySelectorAll('.worker').length == 1")
        await page.evaluate(
            "document.querySelector('#max-tokens').value = 12;"
            "document.querySelector('#prompt').value = 'hello there';"
            "document.querySelector('#ask').requestSubmit()"
        )
        rate = await page.until("document.querySelector('.message.assistant .rate')?.textContent")
        assert "tokens/s" in rate
        assert await page.evaluate("document.querySelectorAll('.message .waterfall .stage').length") >= 2
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        await page.evaluate(
            "document.querySelector('#models').hidden = false;"
            "document.querySelector('#models').replaceChildren(new Option('Llama-3.1-8B-Instruct-FP8', ''))"
        )
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")


async def test_the_page_shows_eight_requests_until_all_are_asked_for(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED, requests=11) as (_, page):
        rows = "document.querySelectorAll('.request').length"
        await page.until(f"{rows} == 8")
        assert await page.evaluate("document.querySelector('#more').textContent") == "Show all 11"
        await page.evaluate("document.querySelector('#more').click()")
        assert await page.evaluate(rows) == 11
        first = await page.evaluate("document.querySelector('.request summary span').textContent")
        assert first.endswith(" ago")
        ended = await page.evaluate("document.querySelector('.request p.muted').textContent")
        assert "ended at its limit of tokens" in ended


async def test_kv_that_requests_hold_is_apart_from_what_is_cached(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED, width=1400) as (_, page):
        shown = await page.until("document.querySelector('.worker .kv')?.textContent")
        assert re.fullmatch(r"KV 0% held, \d+% cached", shown), shown


async def test_a_drained_worker_is_not_shown_as_a_failure(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED) as (_, page):
        await page.until("document.querySelectorAll('.worker').length")
        answer = await page.evaluate(
            "fetch('status').then(r => r.json()).then(s => { s.workers[0].state = 'stopped'; return s; })"
        )
        await page.evaluate(f"window.fetch = async () => new Response(JSON.stringify({json.dumps(answer)}))")
        assert (
            await page.until("document.querySelector('.worker.off .state')?.textContent")
            == "stopped (drained)"
        )
        assert await page.evaluate("document.querySelector('#connection').className") == "badge "


async def test_keys_are_used_or_left_as_they_were(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED) as (_, page):
        await page.until("document.querySelectorAll('.worker').length")
        open_with = (
            "document.querySelector('#open-keys').click(); document.querySelector('#api-key').value = '{}';"
        )
        kept = "sessionStorage.getItem('api-key')"
        await page.evaluate(open_with.format("one") + "document.querySelector('#save-keys').click()")
        await page.until(f"{kept} == 'one'")
        await page.evaluate(open_with.format("two") + "document.querySelector('#cancel-keys').click()")
        assert not await page.evaluate("document.querySelector('#keys').open")
        assert await page.evaluate(kept) == "one"


async def test_the_chats_input_stays_in_the_window(small: SmallModel) -> None:
    async with live_page(small, Mode.MIXED, width=1400, height=700, requests=11) as (_, page):
        await page.until("document.querySelectorAll('.request').length == 8")
        await page.evaluate(
            "for (let i = 0; i < 60; i++) {"
            " const line = document.createElement('div'); line.className = 'message'; line.textContent = 'x';"
            " document.querySelector('#messages').append(line); }"
        )
        inside = "document.querySelector('#ask').getBoundingClientRect().bottom <= innerHeight"
        assert await page.evaluate(inside)
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert await page.evaluate(inside)
