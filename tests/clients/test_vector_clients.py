"""Clients of embeddings and rerankers, unmodified, in an environment of their own: `make test-clients`."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from transformers import BertConfig, BertForSequenceClassification, BertModel

from tests.clients.test_clients import ENVIRONMENT
from tests.faults.support.small_model import save_small_model
from tests.integration.service.test_embeddings import running, with_ends

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "vectors"
PYTHON = ENVIRONMENT / "vectors" / "bin" / "python"
PROGRAMS = sorted(path.name for path in HERE.glob("*.py") if path.name != "checking.py")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An encoder and a cross-encoder with random weights, each with a worker."""
    encoder = save_small_model(tmp_path_factory.mktemp("encoder"), lambda **of: BertModel(BertConfig(**of)))
    reranker = save_small_model(
        tmp_path_factory.mktemp("reranker"),
        lambda **of: BertForSequenceClassification(BertConfig(**of, num_labels=1)),
    )
    models = [with_ends(encoder, pairs=True), with_ends(reranker, pairs=True)]
    found: list[str] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(running(small)) for small in models]
            found.extend(cluster.url for cluster in opened)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(120)
        yield found[0], found[1]
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_gets_what_a_plain_request_gets(urls: tuple[str, str], program: str) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: run make test-clients")
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": "/usr/bin:/bin"}
    command = [PYTHON, HERE / program, *urls, "small"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
