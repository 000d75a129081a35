"""The `router` command."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from common.log_format import formatter
from router.admin.client import COMMANDS, run
from router.cli.open_files import allow_many_connections
from router.cli.packages import shadowed_packages
from router.config.flags import ConfigError, parse
from router.config.settings import LogFormat, LogLevel

__all__ = ["main"]

_USAGE_ERROR = 2
_RAY_LOST = 3
_QUIET = {"GRPC_VERBOSITY": "ERROR", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
"""Read by the libraries when they are imported; what the user has set stands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after an orderly end, 1 when the start failed, 2 for a wrong command line, 3 when Ray
    was lost."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        return run(arguments)
    if arguments and arguments[0] == "doctor":
        from router.cli import doctor  # it alone looks for torch and CUDA

        return doctor.run(arguments)
    if arguments and arguments[0] in ("chat", "top", "batch"):
        from router.client.commands import COMMANDS as CLIENTS  # a server needs none of it

        return CLIENTS[arguments[0]](arguments[1:])
    try:
        config = parse(arguments)
    except ConfigError as error:
        for problem in error.problems:
            print(f"router: {problem}", file=sys.stderr)
        return _USAGE_ERROR
    if shadowed := list(shadowed_packages()):
        for problem in shadowed:
            print(f"router: {problem}", file=sys.stderr)
        return 1
    allow_many_connections()
    _configure_logging(config.operation.log_level, config.operation.log_format)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)

    # Not at the top: a wrong flag, or --help, should not wait a second for Ray and gRPC to be imported.
    from router.cli.service import CANNOT_START, serve
    from router.cluster.nodes import RayLost

    try:
        asyncio.run(serve(config))
    except CANNOT_START as error:
        print(f"router: {error}", file=sys.stderr)
        return 1
    except RayLost as error:
        print(f"router: {error}", file=sys.stderr, flush=True)
        os._exit(_RAY_LOST)  # Ray's own handlers at exit would wait for the Ray that is gone
    return 0


def _configure_logging(level: LogLevel, style: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(style.value))
    logging.basicConfig(level=level.value.upper(), handlers=[handler])
    for library in ("grpc", "asyncio", "uvicorn", "rich"):
        # They report every poll at debug, and their own start and end at info.
        logging.getLogger(library).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
