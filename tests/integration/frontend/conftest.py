"""Both frontends over a scripted dispatcher, on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from engine.modeling.loader.checkpoint import resolve
from tests.integration.frontends import Frontends, open_frontends


@pytest.fixture(scope="session")
def folder() -> Path:
    return resolve("smollm2").path


@pytest.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder) as opened:
        yield opened


@pytest.fixture
async def http(frontends: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontends.url, timeout=30) as client:
        yield client


@pytest.fixture
async def client(frontends: Frontends) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{frontends.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened
