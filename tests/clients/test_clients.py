"""Clients that people use, unmodified, in environments of their own: see `make test-clients`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from engine.loader.checkpoint import resolve
from router.dispatch.token_stream import Delta
from tests.clients.real_model import MAX_MODEL_LEN, engine_script, small_engine
from tests.clients.scripted_model import weather_script
from tests.integration.frontends import Call, Frontends, open_frontends

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ENVIRONMENT = Path(os.environ.get("BATON_CLIENTS", HERE.parents[1] / ".clients"))
PYTHON = ENVIRONMENT / "sdk" / "bin" / "python"
PROGRAMS = sorted(path.name for path in (HERE / "programs").iterdir() if path.suffix in (".py", ".mjs"))


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


def run(program: str, *arguments: str) -> None:
    path = HERE / "programs" / program
    if path.suffix == ".py":
        if not PYTHON.exists():
            pytest.skip(f"{PYTHON} is missing: run make test-clients")
        command = [PYTHON, path]
    else:
        if not (ENVIRONMENT / "node_modules").exists():
            pytest.skip(f"{ENVIRONMENT}/node_modules is missing: run make test-clients")
        command = ["node", shutil.copy(path, ENVIRONMENT)]  # modules are looked for beside the program
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_works_with_a_model_that_calls_tools(scripted: str, program: str) -> None:
    run(program, scripted, "scripted", "small")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_gets_json_and_forced_calls_from_a_small_model(real: str, program: str) -> None:
    run(program, real, "real", "small")
