"""The `router` command."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from common.cpu_times import CpuTimes
from common.log_format import formatter
from router.command.admin.client import COMMANDS, run
from router.command.preflight import allow_many_connections, shadowed_packages
from router.command.shutdown import hangups_held
from router.command.words import ANSWERS, with_flag
from router.config.choices import LogFormat, LogLevel
from router.config.flags.command_line import parse_models
from router.config.flags.values import ConfigError
from router.config.settings import RouterConfig

_USAGE_ERROR = 2
_CLUSTER_LOST = 3
_FRONT_END = "front-end"
"""Command of a front-end process of `--frontends`, followed by the id of its parent. The settings come
through standard input.
"""
_OTHERS = {
    "doctor": "router.command.doctor.command",
    "plan": "simulator.planner.command",
    "drain-node": "router.command.drain_node",
    "compile": "router.command.compile",
    "chat": "router.command.client.chat",
    "top": "router.command.client.top",
    "batch": "router.command.client.batch",
    "verify": "router.command.audit.verify",
    "replay": "router.command.audit.replay",
}
"""Commands that need no server, each with the module whose `run` takes the arguments after the name. Imported
when asked for: torch and the simulator take seconds."""
_QUIET = {"GRPC_VERBOSITY": "ERROR", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
"""Read by the libraries when they are imported. Variables that the user has set take precedence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after an orderly shutdown, 1 if the start failed, 2 on usage errors, 3 if Ray or
    the workers have ended through no doing of this router.
    """
    arguments = with_flag(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        return run(arguments)
    if arguments and arguments[0] in _OTHERS:
        status: int = import_module(_OTHERS[arguments[0]]).run(arguments[1:])
        return status
    parent = int(arguments[1]) if arguments[:1] == [_FRONT_END] else None
    try:
        _check_command(arguments)
        configs = parse_models(arguments if parent is None else arguments[2:])
    except ConfigError as error:
        for problem in error.problems:
            print(f"router: {problem}", file=sys.stderr)
        return _USAGE_ERROR
    if shadowed := list(shadowed_packages()):
        for problem in shadowed:
            print(f"router: {problem}", file=sys.stderr)
        return 1
    allow_many_connections()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with hangups_held():
        if configs[0].frontend.frontends > 1 and parent is None:
            return _serve_several(configs)
        return _serve(configs, parent)


def _serve(configs: Sequence[RouterConfig], parent: int | None) -> int:
    """Run one router; returns the exit status of this process. `parent`: see `end_with_parent`."""
    config = configs[0]
    _configure_logging(config.operation.log_level, config.operation.log_format)
    began = CpuTimes.now()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up, until `serve` handles signals

    # Imported here, so that --help and usage errors do not wait a second for Ray and gRPC.
    from router.cluster.nodes import RayLost
    from router.command.frontends import END_WORKERS, end_with_parent
    from router.command.startup import CANNOT_START, ClusterEnded, serve
    from router.dispatch.workers.loop_turns import TimedLoop

    if parent is not None:
        end_with_parent(parent)
    try:
        with asyncio.Runner(loop_factory=TimedLoop) as runner:
            ends_workers = runner.run(serve(configs, began))
    except CANNOT_START as error:
        _say(config, str(error))
        return 1
    except ClusterEnded as error:
        _say(config, str(error))
        return _CLUSTER_LOST
    except RayLost as error:
        _say(config, str(error))
        os._exit(_CLUSTER_LOST)  # Ray's exit handlers would wait for the lost cluster
    return END_WORKERS if ends_workers and config.frontend.frontends > 1 else 0


def _serve_several(configs: Sequence[RouterConfig]) -> int:
    config = configs[0]
    _configure_logging(config.operation.log_level, config.operation.log_format)
    from router.command.frontends import run_frontends
    from router.command.startup import CANNOT_START

    try:
        return asyncio.run(run_frontends(configs))
    except CANNOT_START as error:
        _say(config, str(error))
        return 1


def _say(config: RouterConfig, error: str) -> None:
    """Why the router ends, in the format of the log."""
    if config.operation.log_format is LogFormat.JSON:
        logging.getLogger("router").error("%s", error)
    else:
        print(f"router: {error}", file=sys.stderr, flush=True)


def _check_command(arguments: Sequence[str]) -> None:
    """Raises ConfigError for a first word that is a command elsewhere, or nearly one; others are models."""
    word = arguments[0] if arguments else ""
    if word in ANSWERS and not Path(word).exists():
        raise ConfigError([f"{word} is not a command: {ANSWERS[word]}. A model is given as --model {word}"])
    close = get_close_matches(word, [*COMMANDS, *_OTHERS], n=1, cutoff=0.75)
    if close and not Path(word).exists():
        raise ConfigError(
            [f"{word} is not a command; did you mean `router {close[0]}`? A model is given as --model {word}"]
        )


def _configure_logging(level: LogLevel, style: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(style.value))
    logging.basicConfig(level=level.value.upper(), handlers=[handler])
    for library in ("grpc", "asyncio", "uvicorn", "rich"):
        # They log every poll at debug, and their own start and end at info.
        logging.getLogger(library).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
