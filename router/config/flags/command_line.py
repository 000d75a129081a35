"""Parses the command line and a YAML file into a `RouterConfig`; errors say what to change."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from engine.presets import PRESETS, Preset
from router.config.flags.aliases import as_given, translated, translates
from router.config.flags.validation import problems_of
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
    preset = settings.get("preset", Preset.BATON)
    config = configured({"page_size": PRESETS[preset].page_size, **settings})
    problems = problems_of(config)
    if problems:
        raise ConfigError([as_given(problem, names) for problem in problems])
    return config


def _given(argv: Sequence[str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Settings of a command line with flags of Baton or of other servers; and the latter by ours."""
    line = translated(argv, _OWN)
    if line.problems:
        raise ConfigError(line.problems)
    try:
        return vars(_parser().parse_args(line.words)), line.names
    except ConfigError as error:
        raise ConfigError([as_given(problem, line.names) for problem in error.problems]) from None


class _Parser(argparse.ArgumentParser):
    """argparse, except that errors are raised, and for an unknown flag the closest one is suggested."""

    def error(self, message: str) -> NoReturn:
        unknown, sep, words = message.partition("unrecognized arguments: ")
        if sep and not unknown:
            flag = words.removeprefix("serve ").split()[0].partition("=")[0]
            if flag.startswith("-"):
                advice = _did_you_mean(flag, [s.flag for s in SETTINGS.values()])
                message = f"{flag} is not a flag of router{advice}"
            else:
                message = f"{flag} belongs to no flag; a model is given as --model {flag}"
        raise ConfigError([message.removeprefix("argument ")])


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="router",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        usage="router --model MODEL [--mode mixed|disagg|adaptive] [flags]",
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
        group.add_argument(setting.flag, action="store_true", help=_help(setting))
    else:
        metavar = setting.option.metavar or "|".join(_choices(setting.type))
        group.add_argument(setting.flag, type=_converter(setting.type), metavar=metavar, help=_help(setting))


def _help(setting: Setting) -> str:
    text = setting.option.help
    if setting.default in (None, "", False) or "default" in text:
        return text
    default = setting.default.value if isinstance(setting.default, Enum) else setting.default
    return f"{text} (default: {default})"


def _choices(type_: type) -> list[str]:
    return [str(member.value) for member in type_] if issubclass(type_, Enum) else []


def _converter(type_: type) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return type_(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {_expectation(type_)}") from None

    return convert


def _expectation(type_: type) -> str:
    if issubclass(type_, Enum):
        return "one of " + ", ".join(_choices(type_))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(type_, "text")


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
    settings: dict[str, object] = {}
    problems: list[str] = []
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in SETTINGS:
            foreign = f"--{key}={str(value).lower() if isinstance(value, bool) else value}"
            if translates(foreign):
                settings.update(_given([foreign])[0])
                continue
            known = [setting.replace("_", "-") for setting in SETTINGS]
            problems.append(f"--config {path}: {key} is not a setting{_did_you_mean(str(key), known)}")
            continue
        try:
            settings[name] = _coerced(name, value)
        except ValueError as error:
            problems.append(f"--config {path}: {key}: {error}")
    if problems:
        raise ConfigError(problems)
    return settings


def _coerced(name: str, value: object) -> object:
    """A YAML value as the setting's type.

    `1` is accepted for a float; `1.5` and `true` are not for an int.
    """
    type_ = SETTINGS[name].type
    if value is None and SETTINGS[name].default is None:
        return None
    if issubclass(type_, Enum) and isinstance(value, str):
        try:
            return type_(value)
        except ValueError:
            pass
    elif type_ is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif type_ is str and type(value) is int:
        return str(value)
    elif type(value) is type_:
        return value
    raise ValueError(f"{value!r} is not {_expectation(type_)}")


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; see router --help"


_OWN: Final = frozenset({*(setting.flag for setting in SETTINGS.values()), "--config", "--help", "-h"})
