"""Time of KV handoffs of long prompts between GPUs, and the exposed part of it.

    python -m benchmarks.gpu.handoff --model FOLDER --lengths 2048,8192,32768

Two disaggregated workers, one prompt at a time, random weights. The first token comes from the prefill worker
and does not wait for the transfer; the second one does. The exposed time is the part of the time between the
two in which the decode worker waited for pages or for their contents.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Target, open_client, send
from benchmarks.lib.load.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.load.workload import Fixed, Work, make_workload
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import figures_table
from benchmarks.lib.servers.server import BatonServer
from router.dispatch.waterfall import busy_seconds

_RESULTS: Final = Path(__file__).parents[1] / "results"
_OUTPUT: Final = 8
"""Tokens; the prefill worker has reported by the time the last one comes."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """One prompt. Seconds, and bytes a second."""

    prompt_tokens: int
    num_bytes: int
    ttft: float
    sending: float
    """In which at least one push was under way."""
    exposed: float
    """Between the first token and the moment when the decode worker had everything."""

    @classmethod
    def of(cls, prompt_tokens: int, timings: Mapping[str, Any]) -> Handoff:
        pushes = timings["pushes"]
        return cls(
            prompt_tokens=prompt_tokens,
            num_bytes=sum(push["bytes"] for push in pushes),
            ttft=timings["ttft_s"],
            sending=busy_seconds((push["begin_s"], push["end_s"]) for push in pushes),
            exposed=timings["reserve_s"] + timings["transfer_s"],
        )

    @property
    def rate(self) -> float:
        return self.num_bytes / self.sending


def main() -> None:
    options = _parser().parse_args()
    console = Console()
    command = ["--mode", "disagg", "--model", options.model, "--served-model-name", "model"]
    command += ["--device", options.device, "--load-format", options.load_format, "--disable-radix-cache"]
    command += options.flags.split()
    with BatonServer(*command, shows_output=True) as server:
        target = Target(server.url, "model", extra={"ignore_eos": True, **body_of(options), "timings": True})
        handoffs = asyncio.run(_measure(target, options.lengths, options.repeat))
    title = f"{Path(options.model).name} on {describe_machine()}"
    console.print(_table(handoffs, title))
    path = options.results / f"handoff-{options.device}.json"
    results = {"title": title, "handoffs": [asdict(handoff) for handoff in handoffs]}
    save_json(path, results)
    console.print(f"Written to {path}")


async def _measure(target: Target, lengths: Sequence[int], repeat: int) -> list[Handoff]:
    handoffs = []
    async with open_client(target) as client:
        for length in lengths:
            first, *others = _prompts(length, 1 + repeat)
            await send(client, target, first)  # kernels and connections are made
            for work in others:
                record = await send(client, target, work)
                if record.error or not record.timings:
                    raise SystemExit(f"A request failed, so there is nothing to measure: {record.error}")
                handoffs.append(Handoff.of(length, record.timings))
    return handoffs


def _prompts(length: int, count: int) -> list[Work]:
    return make_workload(
        count=count, rate=1.0, input_lengths=Fixed(length), output_lengths=Fixed(_OUTPUT), seed=length
    )


def _table(handoffs: Sequence[Handoff], title: str) -> Table:
    """Medians, a row a length."""
    table = figures_table(
        title, "prompt tokens", "KV, MB", "TTFT, ms", "sending, ms", "GB/s", "exposed, ms", "of TTFT"
    )
    for length in sorted({handoff.prompt_tokens for handoff in handoffs}):
        same = [handoff for handoff in handoffs if handoff.prompt_tokens == length]
        ttft, sending, exposed = (
            statistics.median(getattr(handoff, name) for handoff in same)
            for name in ("ttft", "sending", "exposed")
        )
        table.add_row(
            f"{length:,}",
            f"{same[0].num_bytes / 1e6:,.0f}",
            f"{1e3 * ttft:,.1f}",
            f"{1e3 * sending:,.1f}",
            f"{statistics.median(handoff.rate for handoff in same) / 1e9:,.1f}",
            f"{1e3 * exposed:,.1f}",
            f"{exposed / ttft:.1%}",
        )
    return table


def _lengths(text: str) -> list[int]:
    return [int(length) for length in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = command("gpu.handoff", __doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--load-format", default="dummy", choices=["auto", "dummy"])
    parser.add_argument("--lengths", type=_lengths, default="2048,8192,32768", metavar="N,…", help="tokens")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="prompts of each length")
    parser.add_argument("--flags", default="", help="additional router flags, in quotes")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    sampling_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
