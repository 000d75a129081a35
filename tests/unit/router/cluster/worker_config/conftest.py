"""A model that every test of this folder may plan for."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.modeling.loader.checkpoint import Checkpoint
from tests.unit.router.cluster.worker_config.models import write_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(write_model(tmp_path), "tiny")
