"""A benchmark of a model that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lib.model_folder import model_folder
from engine.modeling.loader import checkpoint


def test_an_unknown_model_is_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str) -> Path:
        raise checkpoint.CheckpointError("it could not be fetched")

    monkeypatch.setattr(checkpoint, "download", missing)
    with pytest.raises(SystemExit) as ended:
        model_folder("nobody/no-such-model")
    assert ended.value.code == "--model nobody/no-such-model: it could not be fetched"
