"""The live page in a real browser, over real workers."""

from __future__ import annotations

import os
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
async def live_page(small: SmallModel, mode: Mode, **size: int) -> AsyncIterator[tuple[LocalCluster, Page]]:
    async with browser_page() as page, local_cluster(small, mode) as cluster:
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            for _ in range(3):
                (await client.post("/v1/completions", json=REQUEST, timeout=60)).raise_for_status()
        await page.open(cluster.url, **size)
        yield cluster, page
        if folder := os.environ.get("BATON_SCREENSHOTS"):
            await page.screenshot(Path(folder) / f"{mode.value}-{size.get('width', 1280)}.png")
        assert not page.errors
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
