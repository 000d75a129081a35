"""Several models behind one router: names on the command line, and settings of each in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router.config.choices import Mode
from router.config.flags.command_line import parse, parse_models
from router.config.flags.values import ConfigError


def problems(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_models(argv)
    return "\n".join(caught.value.problems)


def written(folder: Path, **content: object) -> list[str]:
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return ["--config", str(file)]


def test_models_named_by_flags_have_the_same_settings_and_workers_of_their_own() -> None:
    small, big = parse_models(
        ["--model", "small=smollm2", "--model", "big=/m/8B", "--mode", "disagg", "--cluster-name", "x"]
    )

    assert (small.served_model_name, small.model) == ("small", "smollm2")
    assert (big.served_model_name, big.model) == ("big", "/m/8B")
    assert small.mode is big.mode is Mode.DISAGG
    assert (small.cluster.cluster_name, big.cluster.cluster_name) == ("x.small", "x.big")


def test_a_model_of_the_file_has_its_own_settings_before_those_of_all(tmp_path: Path) -> None:
    models = {"small": "smollm2", "big": {"model": "/m/8B", "mode": "disagg", "prefill-workers": 2}}
    file = written(tmp_path, models=models, **{"page-size": 32, "decode-workers": 3})

    small, big = parse_models([*file, "--decode-workers", "4"])

    assert (small.mode, small.num_prefill_workers, small.page_size) == (Mode.MIXED, 0, 32)
    assert (big.mode, big.num_prefill_workers, big.page_size) == (Mode.DISAGG, 2, 32)
    assert small.decode_workers == big.decode_workers == 4  # the command line wins


def test_one_model_may_have_a_name_too() -> None:
    config = parse(["--model", "small=smollm2"])
    assert (config.served_model_name, config.model) == ("small", "smollm2")


def test_a_path_with_an_equals_sign_is_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "step=100"
    folder.mkdir()
    assert parse(["--model", str(folder)]).model == str(folder)


def test_what_models_cannot_share_is_refused_by_name() -> None:
    line = "--model a=m --model b=m --host-kv-gb 1 --disk-kv-dir /kv"
    assert "--disk-kv-dir /kv is that of a and b; give each its own" in problems(*line.split())


@pytest.mark.parametrize("setting", ["http-port", "ray-address", "api-key-file", "drain-timeout"])
def test_settings_of_the_router_are_refused_for_one_model(setting: str, tmp_path: Path) -> None:
    file = written(tmp_path, models={"a": {"model": "m", setting: 1}, "b": "m"})
    assert "is a setting of the router" in problems(*file) or "is not text" in problems(*file)


def test_the_problem_of_a_model_names_it(tmp_path: Path) -> None:
    file = written(tmp_path, models={"a": "m", "b": {"model": "m", "page-size": 0}})
    assert problems(*file).startswith("b: --page-size 0")


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ({"a b": "m"}, "a name has letters"),
        ({"a": 3}, "give a model"),
        ({"a": {"model": "m", "served-model-name": "x"}}, "the name is the one"),
        ({"a": {"model": "m", "pages": 1}}, "pages is not a setting"),
        ({}, "must hold names of models"),
    ],
)
def test_a_wrong_entry_is_refused(models: object, text: str, tmp_path: Path) -> None:
    assert text in problems(*written(tmp_path, models=models))


def test_models_come_from_one_place(tmp_path: Path) -> None:
    file = written(tmp_path, models={"a": "m"})
    assert "give one of them" in problems(*file, "--model", "b=m")
    assert "need a name each" in problems("--model", "a=m", "--model", "m")
