"""What `router` says of flags of other servers: no reason contradicts a flag that exists."""

from __future__ import annotations

import re

import pytest

from router.config.choices import QuantizationChoice, ReasoningParserChoice, ToolCallParser
from router.config.flags.command_line import parse
from router.config.flags.foreign_flags import TRANSLATIONS, UnavailableFlag
from router.config.flags.model_settings import is_of_model
from router.config.flags.values import ConfigError
from router.config.table import SETTINGS

REASONS = {flag: t.reason for flag, t in TRANSLATIONS.items() if isinstance(t, UnavailableFlag)}
OWN = {setting.flag: setting.option.help for setting in SETTINGS.values()}
FEATURES = {
    r"hicache|hierarchical-cache|lmcache|kv-offload|swap-space": "--host-kv-gb",
    r"sleep-mode|memory-saver": "--autoscale",
    r"kv-events": "--kv-events",
    r"trace|profiler": "`router explain REQUEST`",
}
"""Words of foreign flags for features that exist here, and what their reasons must name."""


def problem(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(["--model", "m", *line.split()])
    (text,) = caught.value.problems
    return text


@pytest.mark.parametrize(("words", "ours"), FEATURES.items())
def test_a_feature_that_exists_is_named(words: str, ours: str) -> None:
    about = {flag: reason for flag, reason in REASONS.items() if re.search(words, flag)}
    assert about
    assert {flag: reason for flag, reason in about.items() if ours not in reason} == {}


def test_a_flag_whose_name_contains_one_of_ours_names_it() -> None:
    for flag, reason in REASONS.items():
        words = set(flag.removeprefix("--").split("-"))
        for own in OWN:
            parts = own.removeprefix("--").split("-")
            if len(parts) > 1 and words >= set(parts):
                assert own in reason, (flag, own, reason)


def test_nothing_is_denied_that_the_help_of_a_flag_offers() -> None:
    """A reason such as "there are no LoRA adapters here" holds while no flag is about them."""
    for flag, reason in REASONS.items():
        denied = re.match(r"there (?:is|are) no (\w+)(?:-\w+)* (\w+)?", reason)
        if denied is None or denied[1] in ("etcd", "weight"):
            continue
        subject = denied[1] if denied[2] in ("here", None) else f"{denied[1]} {denied[2]}"
        offers = [own for own, text in OWN.items() if subject.lower() in text.lower()]
        assert offers == [], (flag, reason)


@pytest.mark.parametrize("flag", ["--swap-space 4", "--hicache-size 30", "--kv-offloading-size 10"])
def test_memory_for_kv_beside_the_device_is_found(flag: str) -> None:
    for ours in ("--host-kv-gb", "--disk-kv-dir", "--object-kv-url"):
        assert ours in problem(flag)


@pytest.mark.parametrize(
    "flag",
    [
        "--profiler-config x",
        "--uds /tmp/s",
        "--lora-backend triton",
        "--media-io-kwargs {}",
        "--enable-deterministic-inference",
        "--structured-outputs-config.backend xgrammar",
    ],
)
def test_flags_of_vllm_and_sglang_are_answered_with_a_reason(flag: str) -> None:
    assert "not a flag of router" not in problem(flag)


def test_a_dotted_flag_is_a_field_of_its_json_object() -> None:
    dotted = parse(["--model", "m", "--speculative-config.method", "ngram"])
    assert dotted == parse(["--model", "m", "--speculative-config", '{"method": "ngram"}'])
    more = parse(["--model", "m", "--speculative-config.num-speculative-tokens=3"])
    assert SETTINGS["speculative_num_draft_tokens"].of(more) == 3
    assert "x has no equivalent" in problem("--speculative-config.x 1")


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("awq", "leave it out"),
        ("gptq_marlin", "leave it out"),
        ("bitsandbytes", "leave it out"),
        ("torchao", "--quantization fp8"),
    ],
)
def test_quantized_checkpoints_need_no_flag(method: str, advice: str) -> None:
    assert advice in problem(f"--quantization {method}")
    assert advice in problem(f"-q {method}")
    assert parse(["--model", "m", "--quantization", "fp8"]).quantization is QuantizationChoice.FP8


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("16k", 16_000), ("16K", 16_384), ("25.6k", 25_600), ("1m", 10**6), ("4096", 4096), ("auto", None)],
)
def test_a_context_length_may_be_written_as_for_vllm(text: str, tokens: int | None) -> None:
    assert parse(["--model", "m", "--max-model-len", text]).max_model_len == tokens


@pytest.mark.parametrize("text", ["1.0001k", "k", "1kk", "16kb", "0x1k", "nank"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    assert f"{text!r} is not a whole number" in problem(f"--max-model-len {text}")


@pytest.mark.parametrize(
    ("given", "parser"),
    [
        ("llama3_json", ToolCallParser.LLAMA_JSON),
        ("llama3", ToolCallParser.LLAMA_JSON),
        ("qwen25", ToolCallParser.HERMES),
        ("openai", ToolCallParser.HARMONY),
        ("ernie45", ToolCallParser.HERMES),
        ("hy_v3", ToolCallParser.HUNYUAN3),
    ],
)
def test_tool_call_parsers_have_the_names_of_other_servers(given: str, parser: ToolCallParser) -> None:
    assert parse(["--model", "m", "--tool-call-parser", given]).frontend.tool_call_parser is parser


def test_a_chat_template_is_that_of_one_model() -> None:
    assert parse(["--model", "m", "--chat-template", "m.jinja"]).frontend.chat_template == "m.jinja"
    assert is_of_model(SETTINGS["chat_template"])
    for format in ("auto", "string"):
        parse(["--model", "m", "--chat-template-content-format", format])
    assert "as text" in problem("--chat-template-content-format openai")


@pytest.mark.parametrize(
    ("given", "parser"),
    [
        ("deepseek_r1", ReasoningParserChoice.DEEPSEEK_R1),
        ("qwen3", ReasoningParserChoice.THINK),
        ("ernie45", ReasoningParserChoice.ERNIE),
        ("openai_gptoss", ReasoningParserChoice.HARMONY),
    ],
)
def test_reasoning_parsers_have_the_names_of_other_servers(given: str, parser: ReasoningParserChoice) -> None:
    assert parse(["--model", "m", "--reasoning-parser", given]).frontend.reasoning_parser is parser
