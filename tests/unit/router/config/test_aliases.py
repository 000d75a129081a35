"""Command lines of SGLang, vLLM and Dynamo: accepted where they mean the same, else answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.config import Policy
from engine.model_config.model_impl import ModelImpl
from engine.sched.presets import Preset
from engine.speculation.kinds import Speculation
from router.config.choices import Dtype, Mode, Routing, TransportChoice
from router.config.flags.command_line import parse
from router.config.flags.foreign_flags import TRANSLATIONS, Fields, Renamed, Switch, UnavailableFlag
from router.config.flags.values import ConfigError
from router.config.settings import RouterConfig
from router.config.table import SETTINGS

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def settings_of(config: RouterConfig) -> dict[str, Any]:
    """What differs from the defaults."""
    plain = RouterConfig()
    return {n: s.of(config) for n, s in SETTINGS.items() if s.of(config) != s.of(plain)}


ACCEPTED: dict[str, dict[str, Any]] = {
    # SGLang: chunked prefill, hyperparameter tuning, PD disaggregation
    f"--model-path {LLAMA} --chunked-prefill-size 4096": {"model": LLAMA, "chunked_prefill_size": 4096},
    f"--model-path {LLAMA} --chunked-prefill-size -1": {"model": LLAMA, "chunked_prefill_size": -1},
    f"--model-path {LLAMA} --tp-size 4 --port 30000 --host 0.0.0.0 --mem-fraction-static 0.85": {
        "model": LLAMA,
        "tensor_parallel_size": 4,
        "host": "0.0.0.0",
        "kv_memory_fraction": 0.85,
    },
    f"--model-path {LLAMA} --tp 2 --dp 4 --context-length 131072 --page-size 64": {
        "model": LLAMA,
        "tensor_parallel_size": 2,
        "decode_workers": 4,
        "max_model_len": 131072,
        "page_size": 64,
    },
    f"--model-path {LLAMA} --max-running-requests 64 --max-total-tokens 65536 --disable-radix-cache": {
        "model": LLAMA,
        "max_running_requests": 64,
        "kv_pool_tokens": 65536,
        "disable_radix_cache": True,
    },
    f"--model-path {LLAMA} --cuda-graph-max-bs 160 --enable-metrics --watchdog-timeout 600": {
        "model": LLAMA,
        "cuda_graph_max_bs": 160,
        "step_timeout": 600.0,
    },
    f"--model-path {LLAMA} --disaggregation-mode null --disaggregation-transfer-backend nixl": {
        "model": LLAMA
    },
    f"--model-path {LLAMA} --speculative-algorithm NEXTN --speculative-num-draft-tokens 2": {
        "model": LLAMA,
        "speculative": Speculation.MTP,
        "speculative_num_draft_tokens": 2,
    },
    f"--model-path {LLAMA} --speculative-algorithm EAGLE3 --speculative-draft-model-path head": {
        "model": LLAMA,
        "speculative": Speculation.MODEL,
        "speculative_model": "head",
    },
    f'serve {LLAMA} --speculative-config {{"method":"deepseek_mtp","num_speculative_tokens":2}}': {
        "model": LLAMA,
        "speculative": Speculation.MTP,
        "speculative_num_draft_tokens": 2,
    },
    # vLLM: scheduling and optimization docs
    f"--model {LLAMA} --max-num-batched-tokens 8192 --max-num-seqs 128 --gpu-memory-utilization 0.95": {
        "model": LLAMA,
        "chunked_prefill_size": 8192,
        "max_running_requests": 128,
        "kv_memory_fraction": 0.95,
    },
    f"--model={LLAMA} --tensor-parallel-size=2 --max_model_len=8192 --block-size=32 --port=8000": {
        "model": LLAMA,
        "tensor_parallel_size": 2,
        "max_model_len": 8192,
        "page_size": 32,
        "http_port": 8000,
    },
    f"--model {LLAMA} -tp 2 --enable-prefix-caching --enforce-eager --served-model-name llama": {
        "model": LLAMA,
        "tensor_parallel_size": 2,
        "cuda_graph_max_bs": 0,
        "cuda_graph_max_tokens": 0,
        "served_model_name": "llama",
    },
    f"--model {LLAMA} --no-enable-prefix-caching --distributed-executor-backend ray": {
        "model": LLAMA,
        "disable_radix_cache": True,
    },
    f"serve {LLAMA} --max-num-seqs 8": {"model": LLAMA, "max_running_requests": 8},
    # roseinfer
    f"{LLAMA} --preset roseinfer --paged-attn --cuda-graph --chunked-prefill --prefill-chunk-size 256": {
        "model": LLAMA,
        "preset": Preset.ROSEINFER,
        "long_prefill_token_threshold": "256",
    },
    # Dynamo's front end
    f"--model {LLAMA} --router-mode round-robin --http-port 8000": {
        "model": LLAMA,
        "routing": Routing.ROUND_ROBIN,
        "http_port": 8000,
    },
}

ANSWERED: dict[str, list[str]] = {
    f"--model-path {LLAMA} --disaggregation-mode prefill --port 30001": [
        "--disaggregation-mode prefill: ",
        "--mode disagg --prefill-workers N --decode-workers N",
    ],
    f"--model {LLAMA} --api-key secret": ["--api-key: ", "--api-key-file"],
    f"--model {LLAMA} --pipeline-parallel-size 2 --calculate-kv-scales": [
        "--pipeline-parallel-size: ",
        "--tensor-parallel-size",
        "--calculate-kv-scales: ",
    ],
    f"--model {LLAMA} --is-prefill-worker --migration-limit 3": [
        "--is-prefill-worker: ",
        "--mode disagg",
        "--migration-limit: ",
        "--max-attempts",
    ],
    f"--model {LLAMA} --router-mode kv --kv-overlap-score-weight 1.0": [
        "--kv-overlap-score-weight: ",
        "--mode adaptive",
    ],
}


@pytest.mark.parametrize(("line", "expected"), ACCEPTED.items(), ids=list(ACCEPTED))
def test_a_command_line_of_another_server_is_accepted(line: str, expected: dict[str, Any]) -> None:
    assert settings_of(parse(line.split())) == expected


@pytest.mark.parametrize(("line", "words"), ANSWERED.items(), ids=list(ANSWERED))
def test_a_flag_without_an_equivalent_is_answered_with_ours_or_the_reason(
    line: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(line.split())
    message = "\n".join(caught.value.problems)
    for word in words:
        assert word in message


def test_every_flag_that_a_translation_names_exists() -> None:
    flags = {setting.flag for setting in SETTINGS.values()}
    named: set[str] = set()
    for translation in TRANSLATIONS.values():
        match translation:
            case UnavailableFlag(reason):
                named |= set(re.findall(r"--[a-z][a-z-]+", reason))
            case Renamed(flag, values):
                named |= {flag} - {""}
                reasons = [value.reason for value in values.values() if isinstance(value, UnavailableFlag)]
                named |= {word for reason in reasons for word in re.findall(r"--[a-z][a-z-]+", reason)}
            case Fields(fields):
                named |= {renamed.flag for renamed in fields.values()}
            case Switch(on, off):
                words = on if isinstance(off, UnavailableFlag) else (*on, *off)
                assert all("=" in word for word in words)
                named |= {word.partition("=")[0] for word in words}
    assert named <= flags


def test_no_flag_of_ours_is_taken_for_another_servers() -> None:
    values_only = {flag for flag, t in TRANSLATIONS.items() if isinstance(t, Renamed) and t.flag == flag}
    assert {setting.flag for setting in SETTINGS.values()} & TRANSLATIONS.keys() == values_only
    assert parse(["--model", "m", "--dtype", "half", "--load-format=safetensors"]).dtype is Dtype.FLOAT16
    assert parse(["--model", "m", "--model-impl", "vllm"]).model_impl is ModelImpl.BATON


@pytest.mark.parametrize("flag", [f for f, t in TRANSLATIONS.items() if isinstance(t, UnavailableFlag)])
def test_the_values_of_an_answered_flag_are_not_taken_for_others(flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--model", "m", flag, "3", "auto", "--decode-workers", "2"])
    assert [problem.startswith(f"{flag}: ") for problem in caught.value.problems] == [True]


def test_a_file_may_use_the_names_of_other_servers(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("model-path: m\ntp_size: 2\ndisaggregation-transfer-backend: ucxx\nenforce-eager: true\n")
    config = parse(["--config", str(file)])
    assert (config.model, config.tensor_parallel_size, config.cuda_graph_max_bs) == ("m", 2, 0)
    assert (config.kv_transport, config.mode) == (TransportChoice.UCXX, Mode.MIXED)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--max-num-batched-tokens", ["--max-num-batched-tokens needs a value"]),
        ("--max-num-batched-tokens --max-num-seqs 8", ["--max-num-batched-tokens needs a value"]),
        ("--max-num-batched-tokens many", ["'many'", "--max-num-batched-tokens is --chunked-prefill-size"]),
        ("--max-num-seqs 0", ["--max-running-requests 0", "--max-num-seqs is --max-running-requests here"]),
        ("--enable-mixed-chunk=maybe", ["--enable-mixed-chunk maybe", "true or false"]),
        ("--enable-mixed-chunk --batching alternating", ["--enable-mixed-chunk", "give one of them"]),
        (
            "--max-num-batched-tokens 4096 --chunked-prefill-size 2048",
            ["--max-num-batched-tokens 4096 and --chunked-prefill-size 2048 are one setting"],
        ),
        ("--tp 2 --tensor-parallel-size=4", ["--tp 2 and --tensor-parallel-size 4", "give one of them"]),
    ],
)
def test_a_mistake_is_named_with_the_flag_that_was_given(line: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--model", "m", *line.split()])
    message = "\n".join(caught.value.problems)
    for word in words:
        assert word in message


def test_two_names_with_the_same_value_are_accepted_and_a_repeated_flag_overrides_itself() -> None:
    line = "--model m --tp 2 --tensor-parallel-size 2 --max-num-seqs 8 --max-num-seqs 16"
    config = parse(line.split())
    assert (config.tensor_parallel_size, config.max_running_requests) == (2, 16)


@pytest.mark.parametrize(
    "line",
    [
        "--enable-priority-scheduling --schedule-policy fcfs",
        "--schedule-policy=fcfs --enable-priority-scheduling",
        "--enable-priority-scheduling --scheduling-policy fcfs",
    ],
)
def test_priority_first_and_arrival_within_one_priority_is_our_priority_policy(line: str) -> None:
    assert parse(["--model", "m", *line.split()]).scheduling.effective_policy is Policy.PRIORITY


@pytest.mark.parametrize("policy", ["lof", "lpm", "shortest"])
def test_priority_scheduling_with_another_order_within_one_priority_is_refused(policy: str) -> None:
    for line in (
        f"--enable-priority-scheduling --schedule-policy {policy}",
        f"--schedule-policy {policy} --enable-priority-scheduling",
    ):
        with pytest.raises(ConfigError, match="give one of them"):
            parse(["--model", "m", *line.split()])


def test_priority_scheduling_that_is_off_leaves_the_policy_as_given() -> None:
    line = "--model m --enable-priority-scheduling false --schedule-policy fcfs"
    assert parse(line.split()).scheduling.effective_policy is Policy.FCFS


@pytest.mark.parametrize(
    "line",
    [
        f"serve {LLAMA} --max-num-seqs 8",
        f"serve --max-num-seqs 8 {LLAMA}",
        f"{LLAMA} --max-num-seqs 8",
        f"--disable-radix-cache=false --max-num-seqs=8 {LLAMA}",
        f"--enable-prefix-caching {LLAMA} --max-num-seqs 8",
        f"serve {LLAMA} --model {LLAMA} --max-num-seqs 8",
    ],
)
def test_a_model_may_be_given_without_a_flag(line: str) -> None:
    assert settings_of(parse(line.split())) == {"model": LLAMA, "max_running_requests": 8}


def test_two_models_without_names_are_refused() -> None:
    for line in ("serve a b", "a --model b"):
        with pytest.raises(ConfigError, match="a and b: several models need a name each"):
            parse(line.split())


@pytest.mark.parametrize("value", ["False", "false"])
@pytest.mark.parametrize(
    "form", ["--disable-radix-cache={}", "--disable-radix-cache {}", "--disable_radix_cache={}"]
)
def test_a_switch_of_ours_may_be_given_with_its_value(tmp_path: Path, form: str, value: str) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("model: m\ndisable-radix-cache: true\n")
    line = ["--config", str(file), *form.format(value).split()]
    assert parse(line[:2]).disable_radix_cache
    assert not parse(line).disable_radix_cache, "flags win over the file"
    assert parse([*line, "--disable-radix-cache"]).disable_radix_cache, "the last one counts"


@pytest.mark.parametrize("flag", ["--enable-prefix-caching", "--no-enable-prefix-caching=false"])
def test_switches_that_contradict_each_other_are_refused(flag: str) -> None:
    if "=" in flag:
        assert not parse(["m", flag]).disable_radix_cache
        return
    with pytest.raises(ConfigError, match="give one of them"):
        parse(["m", flag, "--disable-radix-cache"])


def test_the_flags_of_roseinfer_that_are_always_on_cannot_be_turned_off() -> None:
    with pytest.raises(ConfigError, match="KV is always in pages"):
        parse(["m", "--paged-attn=false"])
    assert parse(["m", "--cuda-graph=false"]).cuda_graph_max_bs == 0
    assert parse(["m", "--no-chunked-prefill"]).scheduling.disable_chunked_prefill


def test_overlapped_scheduling_is_on_and_cannot_be_turned_off() -> None:
    for flag in ("--enable-overlap-schedule", "--async-scheduling"):
        assert settings_of(parse(["m", flag])) == {"model": "m"}
        with pytest.raises(ConfigError, match="on GPUs each step is planned while the one before it runs"):
            parse(["m", f"{flag}=false"])
    with pytest.raises(ConfigError, match="on CPUs after it"):
        parse(["m", "--disable-overlap-schedule"])


def test_choices_are_accepted_in_any_case(tmp_path: Path) -> None:
    assert parse(["m", "--schedule-policy", "FCFS"]).scheduling.effective_policy is Policy.FCFS
    both = parse(["m", "--enable-priority-scheduling", "--schedule-policy", "FCFS"])
    assert both.scheduling.effective_policy is Policy.PRIORITY
    file = tmp_path / "router.yaml"
    file.write_text("model: m\nschedule-policy: FCFS\n")
    assert parse(["--config", str(file)]).scheduling.effective_policy is Policy.FCFS


def test_the_names_of_a_file_may_not_contradict_each_other(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("model: m\npage-size: 16\nblock-size: 32\n")
    with pytest.raises(ConfigError, match="are one setting here, --page-size"):
        parse(["--config", str(file)])
    file.write_text("model: m\ndtype: half\n")
    assert parse(["--config", str(file)]).dtype is Dtype.FLOAT16
