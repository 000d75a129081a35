from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from router.config.settings import Mode
from tests.faults.support.clients import GrpcClient
from tests.faults.support.load import Answers, learn, questions
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel, save_small_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("small-model"))


@pytest.fixture(scope="session")
def service(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One prefill and two decode workers, for every test that leaves them as it found them."""
    with serve(small, tmp_path_factory.mktemp("service") / "log") as service:
        yield service


@pytest.fixture(scope="session")
def answers(small: SmallModel) -> Answers:
    """Reference answers for prompts that every test may use: all servers have the same model."""

    async def learned() -> Answers:
        async with local_cluster(small, Mode.MIXED, num_pages=1024) as cluster:
            return await learn(small, GrpcClient(cluster.target), questions(small, count=8))

    return asyncio.run(learned())
