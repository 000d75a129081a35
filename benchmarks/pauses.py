"""Pauses between the tokens of answers under a load, each with the cause that the router recorded.

    python -m benchmarks.pauses --base-url http://127.0.0.1:30000 --rate 16 --seconds 300

Arrivals are a Poisson process; prompts and answers have the lengths of --input-length and --output-length.
The pauses are read from the router's GET /status while the load runs, and compared with the gaps that the
clients saw. Nothing else should use the router meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, only_model
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.workload import make_workload, parse_lengths
from benchmarks.lib.report import summarize

_POLL_S: Final = 1.0
_SHOWN_PARTS: Final = 4

Pauses = dict[int, Mapping[str, Any]]
"""By number."""


def main() -> None:
    options = _parser().parse_args()
    target = Target(
        base_url=options.base_url,
        model=options.model or only_model(options.base_url, options.api_key),
        api_key=options.api_key,
        extra={"ignore_eos": True},
    )
    records, pauses = asyncio.run(_measure(options, target))
    console = Console()
    console.print(_table(pauses.values(), options.least_ms / 1e3))
    seen, recorded = _gaps(records, options.least_ms / 1e3), Counter(_by_cause(pauses.values()))
    console.print(
        f"{seen} gaps of more than {options.least_ms:g} ms at the clients; recorded: {dict(recorded)}"
    )
    summary = summarize(records).as_json()
    console.print_json(json.dumps(summary))
    if options.output:
        save_json(options.output, {"summary": summary, "pauses": [*pauses.values()]})
    if not any(record.error is None for record in records):
        raise SystemExit("no request was answered")


async def _measure(options: argparse.Namespace, target: Target) -> tuple[list[Record], Pauses]:
    workload = make_workload(
        count=round(options.rate * options.seconds),
        rate=options.rate,
        input_lengths=options.input_length,
        output_lengths=options.output_length,
        seed=options.seed,
    )
    headers = {"authorization": f"Bearer {options.metrics_key}"} if options.metrics_key else {}
    async with httpx.AsyncClient(base_url=options.base_url, headers=headers) as client:
        before = max(await _read(client), default=0)
        found: Pauses = {}
        poll = asyncio.create_task(_poll(client, found))
        try:
            records = await offer(target, workload, console=Console())
        finally:
            poll.cancel()
        found |= await _read(client)
    return records, {number: pause for number, pause in sorted(found.items()) if number > before}


async def _poll(client: httpx.AsyncClient, found: Pauses) -> None:
    while True:
        await asyncio.sleep(_POLL_S)
        found |= await _read(client)


async def _read(client: httpx.AsyncClient) -> Pauses:
    status = (await client.get("/status", timeout=30.0)).raise_for_status().json()
    at = status["uptime_s"]
    return {pause["number"]: {**pause, "at_s": at - pause["ended_s_ago"]} for pause in status["pauses"]}


def _table(pauses: Iterable[Mapping[str, Any]], least_s: float) -> Table:
    table = Table("at (s)", "pause (ms)", "worker", "cause", "answers", "parts (ms)", box=None)
    for pause in pauses:
        if pause["seconds"] > least_s:
            longest = sorted(pause["parts"].items(), key=lambda part: -part[1])[:_SHOWN_PARTS]
            table.add_row(
                f"{pause['at_s']:.1f}",
                f"{1e3 * pause['seconds']:.0f}",
                pause["worker"],
                pause["cause"],
                str(pause["answers"]),
                ", ".join(f"{part} {1e3 * seconds:.0f}" for part, seconds in longest),
            )
    return table


def _by_cause(pauses: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """The cause of each answer's pause."""
    for pause in pauses:
        yield from [pause["cause"]] * pause["answers"]


def _gaps(records: Iterable[Record], least_s: float) -> int:
    return sum(gap > least_s for record in records for gap in record.itls)


def _parser() -> argparse.ArgumentParser:
    parser = command("pauses", __doc__)
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:30000", help="without /v1 (default: %(default)s)"
    )
    parser.add_argument("--model", help="default: the first one that the router lists")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--metrics-key", help="of --metrics-key-file, if the router has one")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of arrivals (default: %(default)s)")
    parser.add_argument(
        "--input-length", type=parse_lengths, default="lognormal:2048:0.8:16384", metavar="LENGTHS"
    )
    parser.add_argument("--output-length", type=parse_lengths, default="uniform:128:512", metavar="LENGTHS")
    parser.add_argument(
        "--least-ms", type=float, default=60.0, help="shorter ones are not shown (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


if __name__ == "__main__":
    main()
