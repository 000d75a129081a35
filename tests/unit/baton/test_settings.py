"""Keyword arguments of `baton.LLM`: those of the router's flags, by every name known there."""

from __future__ import annotations

from typing import Any

import pytest

from baton import LLM
from baton.settings import ARGUMENTS, config_of
from engine.config import Batching, Policy
from engine.sched.presets import Preset
from router.config.choices import Device, Dtype
from router.config.flags.command_line import parse
from router.config.flags.foreign_flags import TRANSLATIONS, Fields, Renamed, Switch, UnavailableFlag
from router.config.flags.values import ConfigError
from router.config.option import flag_name
from router.config.settings import RouterConfig
from router.config.table import SETTINGS


def config(**arguments: Any) -> RouterConfig:
    return config_of({"model": "m", **arguments})


def test_the_example_of_the_guide_to_chunked_prefill_in_vllm_is_accepted() -> None:
    found = config(enable_chunked_prefill=True, max_num_batched_tokens=8192, gpu_memory_utilization=0.9)
    assert (found.chunked_prefill_size, found.kv_memory_fraction) == (8192, 0.9)
    assert not found.scheduling.disable_chunked_prefill


def test_scheduling_settings_are_arguments() -> None:
    found = config(
        preset="vllm",
        long_prefill_token_threshold=512,
        max_num_partial_prefills=2,
        scheduling_policy="fcfs",
        enable_mixed_chunk=False,
        max_num_seqs=64,
    )
    assert found.scheduling.preset is Preset.VLLM
    assert found.scheduling.effective_threshold == 512
    assert found.scheduling.schedule_policy is Policy.FCFS
    assert found.scheduling.batching is Batching.PREFILL_FIRST
    assert found.max_running_requests == 64


def test_a_preset_brings_its_page_size() -> None:
    assert config(preset="sglang").page_size == 1
    assert config(preset="sglang", page_size=16).page_size == 16


def test_the_names_of_values_and_of_enums_are_those_of_the_command_line() -> None:
    assert config(dtype="half", device="CUDA").dtype is Dtype.FLOAT16
    assert config(device=Device.CPU).device is Device.CPU
    assert config(enforce_eager=True).cuda_graph_max_bs == 0
    assert config(enable_prefix_caching=False).disable_radix_cache


def test_none_is_the_default_of_every_argument() -> None:
    assert config(max_model_len=None, quantization=None, swap_space=None) == config()


@pytest.mark.parametrize("name", sorted(ARGUMENTS - {"model", "tensor_parallel_size"}))
def test_every_setting_of_engine_and_scheduler_is_an_argument_as_on_the_command_line(name: str) -> None:
    setting = SETTINGS[name]
    value: Any = {bool: True, int: 64, float: 0.5}.get(setting.type)
    if value is None:
        value = "auto" if setting.type is str else list(setting.type)[-1].value  # type: ignore[attr-defined]
    flag = setting.flag if value is True else f"{setting.flag}={value}"
    assert ended(lambda: config(**{name: value})) == ended(lambda: parse(["--model", "m", flag]))


@pytest.mark.parametrize(
    "flag",
    [
        flag
        for flag, meaning in TRANSLATIONS.items()
        if not isinstance(meaning, Fields | UnavailableFlag)
        and flag.startswith("--")
        and not flag.startswith("--tp")
    ],
)
def test_every_alias_of_such_a_setting_is_an_argument(flag: str) -> None:
    meaning = TRANSLATIONS[flag]
    switch = isinstance(meaning, Switch)
    value: Any = True if switch else 64
    words = [flag] if switch else [f"{flag}=64"]
    own = {w.partition("=")[0] for w in meaning.on} if isinstance(meaning, Switch) else {meaning.flag}  # type: ignore[union-attr]
    name = flag.removeprefix("--").replace("-", "_")
    if own - {""} <= {flag_name(argument) for argument in ARGUMENTS}:
        assert ended(lambda: config(**{name: value})) == ended(lambda: parse(["--model", "m", *words]))
    elif isinstance(meaning, Renamed) and SETTINGS[meaning.flag[2:].replace("-", "_")].type is int:
        with pytest.raises(TypeError, match=f"LLM.. has no argument {name}: {meaning.flag} is a setting"):
            config(**{name: value})


def ended(make: Any) -> object:
    """The configuration apart from the bound of the queue; or that it was refused."""
    try:
        found = make()
    except (ConfigError, TypeError, ValueError):
        return "refused"
    return {n: s.of(found) for n, s in SETTINGS.items() if n != "max_queued_requests"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_num_batched_token", ["max_num_batched_token;", "did you mean max_num_batched_tokens?"]),
        ("long_prefill_treshold", ["did you mean long_prefill_token_threshold?"]),
        ("qqqqqqqq", ["has no argument qqqqqqqq; see docs/flags.md"]),
        ("http_port", ["has no argument http_port: --http-port is a setting of the router"]),
        ("port", ["has no argument port: --http-port is a setting of the router"]),
    ],
)
def test_an_unknown_argument_is_a_type_error_that_suggests(name: str, words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        LLM("m", **{name: 8})
    for word in words:
        assert word in str(caught.value)
    assert "RouterConfig" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"page_size": 0}, ["--page-size 0"]),
        ({"max_num_seqs": 0}, ["--max-running-requests 0", "max_num_seqs is --max-running-requests here"]),
        ({"max_num_batched_tokens": "many"}, ["max_num_batched_tokens", "'many' is not a whole number"]),
        ({"preset": "orca"}, ["preset", "'orca' is not one of baton, sglang"]),
        ({"quantization": "int3"}, ["quantization", "'int3' is not one of"]),
        ({"block_size": 32, "page_size": 16}, ["are one setting here"]),
        ({"tensor_parallel_size": 2}, ["one process"]),
    ],
)
def test_a_wrong_value_is_a_value_error_that_names_it(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        LLM("m", **arguments)
    for word in words:
        assert word in str(caught.value)
