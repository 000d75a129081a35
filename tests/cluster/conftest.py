"""Three nodes for each file, whose tests are the steps of one story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.cluster.three_nodes import ThreeNodes, build_wheel
from tests.cluster.steps import SETTINGS, SHAPE
from tests.faults.support.small_model import SmallModel, save_small_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("model")
    small = save_small_model(folder, **SHAPE)
    for path in (folder, *folder.iterdir()):  # for the user of the nodes
        path.chmod(0o755 if path.is_dir() else 0o644)
    return small


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(autouse=True)
def _links(request: pytest.FixtureRequest) -> Iterator[None]:
    """A step that failed leaves no link cut: the next ones tell their own story."""
    cluster: ThreeNodes = request.getfixturevalue("cluster")
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        for machine in list(cluster.machines.cut_off):
            cluster.mend(machine)


@pytest.fixture(scope="module")
def cluster(small: SmallModel, wheel: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(wheel, small.folder, **SETTINGS) as cluster:
        yield cluster
