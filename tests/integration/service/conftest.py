from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import Changed, changed_model
from tests.integration.service.vision_models import VisionModel


@pytest.fixture(scope="session")
def changed(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    return changed_model(small, tmp_path_factory.mktemp("changed") / "model")


@pytest.fixture(scope="session")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel("smolvlm", tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(params=Mode)
async def cluster(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """A service in each mode, which has lost no page and no worker at its end."""
    async with local_cluster(small, request.param) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths
