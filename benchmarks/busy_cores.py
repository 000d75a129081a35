"""Tokens a second of one stream on this machine, alone and beside programs that keep cores busy.

    python -m benchmarks.busy_cores --loops 2

Each setting is a server of its own; all are started, and measured in turn. Whatever else runs on the machine
counts as well; the table gives what that used before the first server.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.servers.server import BatonServer

_SETTLE_S: Final = 3.0
"""Between a change of what runs beside and the measurement."""


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """`count` processes that compute without end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def tokens_per_s(server: BatonServer, model: str, tokens: int) -> float:
    """Tokens per second of one answer, its prompt included."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}
    began = time.monotonic()
    httpx.post(
        f"{server.url}/v1/completions", json={**body, "temperature": 0}, timeout=600, trust_env=False
    ).raise_for_status()
    return tokens / (time.monotonic() - began)


def measure(settings: list[list[str]], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Tokens/s by setting and by what runs beside."""
    speeds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        servers = {}
        for flags in settings:
            server = BatonServer("--model", options.model, "--served-model-name", "model", *flags)
            servers[shlex.join(flags) or "default"] = stack.enter_context(server)
            tokens_per_s(server, "model", options.tokens)
        for _ in range(options.rounds):
            for beside, loops in (("alone", 0), ("busy", options.loops)):
                with busy_loops(loops):
                    for name, server in servers.items():
                        time.sleep(_SETTLE_S)
                        speeds.setdefault(name, {}).setdefault(beside, []).extend(
                            tokens_per_s(server, "model", options.tokens) for _ in range(options.answers)
                        )
    return speeds


def main() -> None:
    options = make_parser().parse_args()
    used = sum(psutil.cpu_percent(interval=2.0, percpu=True)) / 100
    settings = [shlex.split(flags) for flags in options.setting or ("", "--worker-cpus 1")]
    results = measure(settings, options)
    table = Table(
        "setting",
        "alone",
        f"beside {options.loops} loops",
        title=f"{options.model} on {describe_machine()}, {used:.1f} cores used by others; median (range)",
    )
    for name, speeds in results.items():
        table.add_row(name, _row(speeds["alone"]), _row(speeds["busy"]))
    Console().print(table)


def _row(speeds: list[float]) -> str:
    return f"{statistics.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f})"


def make_parser() -> argparse.ArgumentParser:
    parser = command("busy_cores", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--loops", type=int, default=2, help="busy processes")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer")
    parser.add_argument("--answers", type=int, default=3, help="measured in each round")
    parser.add_argument("--rounds", type=int, default=2, help="of alone and busy in turn")
    parser.add_argument("--setting", action="append", help="flags of router; may be given several times")
    return parser


if __name__ == "__main__":
    main()
