"""What an update of the weights costs the requests that are served meanwhile.

    router --model FOLDER --decode-workers 2 --admin-key-file keys
    python -m benchmarks.weight_update --admin-key KEY --folder OTHER_FOLDER --rate 30

Chat arrives at a constant rate. After --before seconds the service is told to take the weights of --folder, a
checkpoint of the same shape on the machines of all workers. Reported are the tokens a second and the longest
pauses of the streams before the call and until its answer, the seconds until a worker serves the new version,
and those until all do.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, only_model
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.workload import make_workload, parse_lengths

_POLL_S = 0.05
_LONGEST_UPDATE_S = 600.0
_LOST = "share of tokens lost"


@dataclass(frozen=True, slots=True)
class Update:
    """Times are seconds on the clock of the records."""

    called: float
    first_served: float
    """A worker was seen with the new version."""
    answered: float
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """What streams got between two times."""

    tokens_per_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    longest_pause_ms: float


def span_of(records: Sequence[Record], begin: float, end: float) -> Span:
    """Pauses count in the span in which they end."""
    arrivals = sum(begin <= at < end for record in records for at in record.arrivals)
    gaps = sorted(
        after - before
        for record in records
        for before, after in itertools.pairwise(record.arrivals)
        if begin <= after < end
    )
    p50, p99, longest = (gaps[int(share * (len(gaps) - 1))] if gaps else 0.0 for share in (0.5, 0.99, 1.0))
    return Span(arrivals / (end - begin), *(round(1e3 * gap, 1) for gap in (p50, p99, longest)))


async def update(options: argparse.Namespace) -> Update:
    await asyncio.sleep(options.before)
    headers = {"Authorization": f"Bearer {options.admin_key}"}
    body = {"model_path": str(options.folder), "weight_version": options.version}
    if options.update_mode:
        body["update_mode"] = options.update_mode
    client = httpx.AsyncClient(
        base_url=options.base_url, headers=headers, timeout=_LONGEST_UPDATE_S, trust_env=False
    )
    async with client:
        called = time.monotonic()
        call = asyncio.create_task(client.post("/update_weights_from_disk", json=body))
        first = await _first_served(client, call, options.version)
        answer = await call
        answered = time.monotonic()
    return Update(called, first, answered, answer.json())


async def _first_served(client: httpx.AsyncClient, call: asyncio.Task[httpx.Response], version: str) -> float:
    while not call.done():
        info = (await client.get("/weight_info")).json()
        if any(worker["weight_version"] == version for worker in info["workers"].values()):
            break
        await asyncio.sleep(_POLL_S)
    return time.monotonic()


async def run(options: argparse.Namespace) -> tuple[list[Record], Update]:
    workload = make_workload(
        count=int(options.rate * options.seconds),
        rate=options.rate,
        input_lengths=options.input_length,
        output_lengths=options.output_length,
        seed=options.seed,
    )
    target = Target(options.base_url, only_model(options.base_url), extra={"ignore_eos": True})
    records, done = await asyncio.gather(offer(target, workload), update(options))
    return records, done


def make_parser() -> argparse.ArgumentParser:
    parser = command("weight_update", __doc__)
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:30000", help="without /v1 (default: %(default)s)"
    )
    parser.add_argument("--admin-key", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--version", default="new", help="default: %(default)s")
    parser.add_argument("--update-mode", choices=["rolling", "together"], help="default: the router's")
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals (default: %(default)s)")
    parser.add_argument(
        "--before", type=float, default=15.0, help="seconds until the call (default: %(default)s)"
    )
    parser.add_argument(
        "--settling", type=float, default=5.0, help="seconds that are not compared (default: %(default)s)"
    )
    parser.add_argument("--input-length", type=parse_lengths, default="lognormal:256:0.8:2048")
    parser.add_argument("--output-length", type=parse_lengths, default="lognormal:128:0.6:512")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    records, done = asyncio.run(run(options))
    began = min(record.sent for record in records)
    before = span_of(records, began + options.settling, done.called)
    during = span_of(records, done.called, done.answered)
    lost = 1 - during.tokens_per_s / before.tokens_per_s if before.tokens_per_s else 0.0
    failed = [record.error for record in records if record.error]
    table = Table("", "before", "during the update")
    for name, value in asdict(before).items():
        table.add_row(name, f"{value:.1f}", f"{asdict(during)[name]:.1f}")
    table.add_row(_LOST, "", f"{lost:.1%}")
    table.add_row("s to the first worker", "", f"{done.first_served - done.called:.2f}")
    table.add_row("s to the answer", "", f"{done.answered - done.called:.2f}")
    table.add_row("requests, failed", f"{len(records)}", f"{len(failed)}")
    console = Console()
    console.print(table, done.answer, *dict.fromkeys(failed), highlight=False)
    if options.output:
        save_json(
            options.output,
            {"before": asdict(before), "during": asdict(during), _LOST: lost, "failed": len(failed)},
        )
    if not done.answer.get("success"):
        raise SystemExit("the update was refused")


if __name__ == "__main__":
    main()
