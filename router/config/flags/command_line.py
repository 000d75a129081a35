"""Parses the command line and a YAML file into a `RouterConfig`; errors say what to change."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from common.version import VERSION
from router.config.flags.aliases import OWN, as_given, translated
from router.config.flags.config_file import ConfigFile, config_file_of, read_config_file
from router.config.flags.model_settings import named_model, problems_between, settings_of
from router.config.flags.validation import problems_of
from router.config.flags.values import ConfigError, choices, converter, did_you_mean
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, Setting, configured

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

  router --model small=smollm2 --model big=/models/Llama-3.1-8B-Instruct
      two models, each with workers of its own; with other settings for each: `models` in a file

  router workers | router drain decode-1 | router restart all
      list the workers of a running router; drain one; restart all, one by one

  router drain-node
      before this machine ends: move the requests of its workers to those of other machines

  router chat | router top | router batch requests.jsonl answers.jsonl
      chat with a running router; monitor it; send a file of requests (each has --help)
  router explain REQUEST
      where a request was computed, and what it waited for: budget, pages, policy, transfer

  router verify ANSWER.json
      compute a recorded answer again, here or on a service, and compare (see --help)
  router replay LOG.jsonl --url http://127.0.0.1:31000
      compute a log of --record-requests again on another version or mode, and report what differs

  router plan --model llama-3.1-8b --gpus 2 --trace TRACE.jsonl --ttft-target-ms 500 --itl-target-ms 15
      simulate which mode, split and tensor parallelism serve a load best (see --help)

  router doctor --model smollm2
      check this machine: packages, GPUs, limits, and the KV bandwidth between two processes

then:
  curl http://127.0.0.1:30000/v1/chat/completions -H 'content-type: application/json' \\
       -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  and http://127.0.0.1:30000/ in a browser: the live page
"""


def parse(argv: Sequence[str]) -> RouterConfig:
    """The validated configuration of a router with one model. Raises ConfigError; see `parse_models`."""
    config, *others = parse_models(argv)
    if others:
        raise ConfigError(["there are several models, and this is for one"])
    return config


def parse_models(argv: Sequence[str]) -> tuple[RouterConfig, ...]:
    """The validated configuration of each model; they are equal in what `is_of_model` does not name.

    Raises ConfigError; exits for --help and --version as argparse does.
    """
    given, names = _given(argv)
    path: Path | None = given.pop("config", None)
    return _checked(given, read_config_file(path) if path else ConfigFile(), names)


def configs_of(content: Mapping[str, Any]) -> tuple[RouterConfig, ...]:
    """As `parse_models`, from the content of a file. Raises ConfigError."""
    return _checked({}, config_file_of(content), {})


def _checked(given: dict[str, Any], file: ConfigFile, names: Mapping[str, str]) -> tuple[RouterConfig, ...]:
    configs = tuple(map(configured, _settings(given, file)))
    problems = [
        as_given(_of(config, configs, problem), names)
        for config in configs
        for problem in problems_of(config)
    ]
    problems += problems_between(configs)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return configs


def _settings(given: dict[str, Any], file: ConfigFile) -> list[dict[str, Any]]:
    """Settings of each model. What the command line has wins over the file. Raises ConfigError."""
    models = list(dict.fromkeys(given.pop("model", [])))
    named = {found.name: {"model": found.path} for found in map(named_model, models) if found is not None}
    if models and file.models:
        raise ConfigError([f"--model {models[0]} and `models` in the file; give one of them"])
    if (named and len(named) < len(models)) or (not named and len(models) > 1):
        names = " and ".join(sorted(models))
        raise ConfigError([f"{names}: several models need a name each, such as --model small=smollm2"])
    settings = {**file.settings, **given}
    if not (several := named or file.models):
        return [settings | ({"model": models[0]} if models else {})]
    if "served_model_name" in settings:
        raise ConfigError(
            [f"--served-model-name {settings['served_model_name']}: each model has its own name"]
        )
    return [settings_of(name, file.settings, own, given) for name, own in several.items()]


def _of(config: RouterConfig, configs: Sequence[RouterConfig], problem: str) -> str:
    return problem if len(configs) == 1 else f"{config.served_model_name}: {problem}"


def _given(argv: Sequence[str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Settings of a command line with flags of Baton or of other servers, `model` as a list; and the flags
    of others by ours.
    """
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
    models = [*given.get("model", []), *rest]
    return {**given, "model": models} if models else given


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
    parser.add_argument("--version", action="version", version=f"baton {VERSION}", help="print the version")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in SETTINGS.values():
        option = setting.option
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        if setting.name == "model":
            groups[option.group].add_argument(
                setting.flag, action="append", metavar=option.metavar, help=option.help
            )
        else:
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
