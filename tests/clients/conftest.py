"""Frontends with a model behind them, for clients to talk to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from engine.modeling.loader.checkpoint import resolve
from router.dispatch.token_stream import Delta
from tests.clients.real_model import MAX_MODEL_LEN, engine_script, small_engine
from tests.clients.scripted_model import weather_script
from tests.integration.frontends import Call, Frontends, open_frontends

Script: TypeAlias = Callable[[Call], Iterable[Delta]]


@contextmanager
def serving(make_script: Callable[[Frontends], Script]) -> Iterator[str]:
    """URL of frontends in a thread."""
    opened: list[Frontends] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_frontends(resolve("smollm2").path, max_model_len=MAX_MODEL_LEN) as frontends:
            frontends.dispatcher.script = make_script(frontends)
            opened.append(frontends)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield opened[0].url
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    """Its model calls a tool whenever it may."""
    with serving(lambda frontends: weather_script(frontends.generation.tokenizer)) as url:
        yield url


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """Its model is SmolLM2, which a grammar holds to schemas."""
    engine = small_engine()
    try:
        with serving(lambda _: engine_script(engine)) as url:
            yield url
    finally:
        engine.close()
