"""HTTP and gRPC front ends over a scripted model, and clients of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio

from engine.modeling.loader.checkpoint import resolve
from tests.integration.frontends import Frontends, open_frontends


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("smollm2").path


@pytest_asyncio.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder, max_model_len=2048) as opened:
        yield opened


@pytest_asyncio.fixture
async def client(frontends: Frontends) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{frontends.url}/v1", api_key="-", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def http(frontends: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontends.url, timeout=30) as client:
        yield client
