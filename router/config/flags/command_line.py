"""Parses the command line and a YAML file into a `RouterConfig`; errors say what to change."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import yaml

from router.config.flags.aliases import OWN, as_given, translated
from router.config.flags.named_settings import named_settings
from router.config.flags.validation import problems_of
from router.config.flags.values import choices, converter, did_you_mean
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, Setting, configured

__all__ = ["ConfigError", "add_flag", "parse", "settings_in"]

_DESCRIPTION = """\
Serve a language model from a cluster: an OpenAI-compatible HTTP API and a gRPC API in front of
prefill and decode workers that Ray places, starts and restarts."""

_EXAMPLES = """\
examples:
  router --model smollm2
      one worker on this machine; prefill chunks share steps with decodes

  router --model smollm2 --mode disagg --prefill-workers 1 --decode-workers 1
      prefill on one worker, decode on another; KV is sent over UCX while the prompt is computed

  router --model /models/Llama-3.1-8B-Instruct --mode disagg --prefill-workers 2 --decode-workers 6 \\
         --ray-address auto --host 0.0.0.0
      eight GPUs of a running Ray cluster (see deploy/cluster.yaml)

  router --config production.yaml --log-level debug
      the same names in a file (page-size: 32); flags win over the file

  router workers | router drain decode-1 | router restart all
      list the workers of a running router; drain one; restart all, one by one

  router chat | router top | router batch requests.jsonl answers.jsonl
      chat with a running router; monitor it; send a file of requests (each has --help)
  router explain REQUEST
      where a request was computed, and what it waited for: budget, pages, policy, transfer

  router plan --model llama-3.1-8b --gpus 2 --trace TRACE.jsonl --ttft-target-ms 500 --itl-target-ms 15
      simulate which mode, split and tensor parallelism serve a load best (see --help)

  router doctor --model smollm2
      check this machine: packages, GPUs, limits, and the KV bandwidth between two processes

then:
  curl http://127.0.0.1:30000/v1/chat/completions -H 'content-type: application/json' \\
       -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  and http://127.0.0.1:30000/ in a browser: the live page
"""


class ConfigError(Exception):
    """The command line or the file is invalid. Every message names the flag, its value and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse(argv: Sequence[str]) -> RouterConfig:
    """The validated configuration. Raises ConfigError; exits for --help and --version as argparse does."""
    given, names = _given(argv)
    path: Path | None = given.pop("config", None)
    settings: dict[str, Any] = {**(settings_in(path) if path else {}), **given}
    config = configured(settings)
    problems = problems_of(config)
    if problems:
        raise ConfigError([as_given(problem, names) for problem in problems])
    return config


def _given(argv: Sequence[str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Settings of a command line with flags of Baton or of other servers; and the latter by ours."""
    line = translated(argv[1:] if argv and argv[0] == "serve" else argv)
    if line.problems:
        raise ConfigError(line.problems)
    try:
        parsed, rest = _parser().parse_known_args(line.words)
        return _with_model(vars(parsed), rest), line.names
    except ConfigError as error:
        raise ConfigError([as_given(problem, line.names) for problem in error.problems]) from None


def _with_model(given: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    """`rest`: what belongs to no flag, which may be a model: `router serve MODEL`, as in vLLM."""
    for flag in (word.partition("=")[0] for word in rest if word.startswith("-")):
        raise ConfigError([f"{flag} is not a flag of router{did_you_mean(flag, OWN)}"])
    models = {*rest, given["model"]} if "model" in given else set(rest)
    if len(models) > 1:
        raise ConfigError([f"{' and '.join(sorted(models))}: one router serves one model; give one of them"])
    return {**given, "model": models.pop()} if models else given


class _Parser(argparse.ArgumentParser):
    """argparse, except that errors are raised."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([message.removeprefix("argument ")])


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="router",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        usage="router [serve] MODEL [--mode mixed|disagg|adaptive] [flags]",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        # Flags that are not given are absent from the result, so that the file's value applies.
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in SETTINGS.values():
        option = setting.option
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add_flag(groups[option.group], setting)
    groups[SETTINGS["log_level"].option.group].add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file with any of these settings, by the same names"
    )
    return parser


def add_flag(group: argparse._ActionsContainer, setting: Setting) -> None:
    if setting.type is bool:
        # `translated` writes FLAG=true and FLAG=false, so that no following word is taken for the value.
        group.add_argument(
            setting.flag,
            nargs="?",
            const=True,
            type=converter(bool),
            metavar="true|false",
            help=_help(setting),
        )
    else:
        metavar = setting.option.metavar or "|".join(choices(setting.type))
        group.add_argument(setting.flag, type=converter(setting.type), metavar=metavar, help=_help(setting))


def _help(setting: Setting) -> str:
    text = setting.option.help
    if setting.default in (None, "", False) or "default" in text:
        return text
    default = setting.default.value if isinstance(setting.default, Enum) else setting.default
    return f"{text} (default: {default})"


def settings_in(path: Path) -> dict[str, object]:
    """The settings of a YAML file, by the names of `RouterConfig`. Raises ConfigError."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError([f"--config {path}: {error.strerror}; give a readable YAML file"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"--config {path} is not YAML: {error}"]) from None
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError([f"--config {path} must hold settings such as `page-size: 16`"])
    found = named_settings({str(key): value for key, value in content.items()})
    known = [setting.replace("_", "-") for setting in SETTINGS]
    problems = [f"{key} is not a setting{did_you_mean(key, known)}" for key in found.unknown]
    if problems := problems + found.problems:
        raise ConfigError([f"--config {path}: {problem}" for problem in problems])
    return found.settings
