"""What is said of a model that could not be fetched."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

from engine.modeling.loader.checkpoint import CheckpointError, resolve

httpx: Any = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
"""The HTTP library of the installed huggingface_hub."""


def answered(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    request = httpx.Request("GET", "https://huggingface.co/api/models/o/m")
    return kind("long text\nmore of it", response=httpx.Response(status, request=request))


def missing(cause: Exception) -> LocalEntryNotFoundError:
    error = LocalEntryNotFoundError("Got: something\nAn error happened")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answered(GatedRepoError, 401), ["gated", "https://huggingface.co/o/m", "HF_TOKEN"]),
        (missing(answered(GatedRepoError, 403)), ["gated", "HF_TOKEN"]),
        (answered(RepositoryNotFoundError, 404), ["has no o/m", "private", "HF_TOKEN"]),
        (missing(answered(HfHubHTTPError, 403)), ["answers 403", "HF_TOKEN"]),
        (missing(answered(HfHubHTTPError, 503)), ["answers 503"]),
        (missing(OfflineModeIsEnabled("offline")), ["HF_HUB_OFFLINE is set"]),
        (
            missing(httpx.ConnectError("Name or service not known")),
            ["no network", "Name or service not known"],
        ),
        (PermissionError(13, "Permission denied", "/cache"), ["Permission denied"]),
    ],
)
def test_the_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
) -> None:
    def fails(model: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(CheckpointError, match="o/m is not on this machine") as caught:
        resolve("o/m")
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__, "the traceback of the library is left out"


def test_a_plain_word_is_not_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def asks(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", asks)
    with pytest.raises(
        CheckpointError, match="there is no model wrokers on this machine; a model is smollm2"
    ):
        resolve("wrokers")


def test_a_plain_word_that_was_fetched_before_is_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--gpt2" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "models--gpt2" / "refs").mkdir()
    (tmp_path / "models--gpt2" / "refs" / "main").write_text("0" * 40)
    found = resolve("gpt2")
    assert (found.path, found.name) == (folder, "gpt2")


@pytest.mark.parametrize("sharded", [True, False])
def test_weights_are_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sharded: bool) -> None:
    """Repositories may have the same weights again: in a folder, or as Mistral's own file."""
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weights = shards if sharded else ["model.safetensors"]
    others = ["original/model.safetensors", "original/config.json", "consolidated.safetensors", "README.md"]
    index = "model.safetensors.index.json"
    files = ["config.json", "tokenizer.json", *weights, *others, *([index] if sharded else [])]

    def fetch(model: str, **options: Any) -> str:
        for name in filter_repo_objects(files, **options):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            named = {"weight_map": dict(enumerate(shards))} if name == index else {}
            path.write_text(json.dumps(named))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    resolve("o/m")

    fetched = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert fetched == set(files) - set(others)
