"""`router top`: the live page for terminals."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlencode

from rich.console import Console
from rich.live import Live

from router.client.api import ApiError, Unreachable, add_api_arguments, api_of
from router.client.top_screen import top_screen

__all__ = ["make_parser", "run"]

_PATH = "/status"


def run(argv: Sequence[str]) -> int:
    """Run until ctrl-C; without a terminal, print once. Exit status: 1 if no router answers or it refuses."""
    arguments = make_parser().parse_args(argv)
    console = Console()
    try:
        api = api_of(arguments)
        path = _PATH if arguments.model is None else f"{_PATH}?{urlencode({'model': arguments.model})}"
        screen = top_screen(api.get(path))
        if arguments.once or not console.is_terminal:
            console.print(screen)
            return 0
        with Live(screen, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(arguments.interval)
                live.update(top_screen(api.get(path)), refresh=True)
    except (ApiError, Unreachable, OSError, ValueError) as error:
        print(f"router top: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router top",
        description="Monitor a running router: workers, KV pages, queue, latencies, last requests.",
    )
    add_api_arguments(parser, key="metrics key")
    parser.add_argument("--model", metavar="NAME", help="model to show (default: the router's first)")
    parser.add_argument("--once", action="store_true", help="print once and exit, as without a terminal")
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="refresh interval (default: %(default)s)",
    )
    return parser
