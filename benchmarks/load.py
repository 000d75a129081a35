"""Load generator for OpenAI servers: reports latency, throughput and goodput.

    python -m benchmarks.load --base-url http://127.0.0.1:30000 --rate 2 --requests 100

Arrivals are open-loop: requests are sent at their arrival times, whether or not earlier ones were answered.
--max-concurrency makes it a closed loop. With --long, this share of the prompts has 8k to 32k tokens, and the
other prompts have a table of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.lib.command import command
from benchmarks.lib.load.client import Api, Target, only_model
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.load.workload import (
    Uniform,
    are_long,
    make_workload,
    parse_lengths,
    with_long_prompts,
)
from benchmarks.lib.report import Objective, summarize, summary_table


def main() -> None:
    options = make_parser().parse_args()
    console = Console()
    target = Target(
        base_url=options.base_url,
        model=options.model or _offered_model(options),
        api=Api(options.api),
        api_key=options.api_key,
        extra={**body_of(options), **({"ignore_eos": True} if options.ignore_eos else {})},
    )
    drawn = {
        "count": options.requests,
        "rate": options.rate,
        "input_lengths": options.input_length,
        "output_lengths": options.output_length,
        "seed": options.seed,
    }
    if options.long and (target.api is Api.CHAT or options.shared_prefix):
        raise SystemExit("--long: not with --api chat or --shared-prefix")
    if options.long:
        workload = with_long_prompts(**drawn, share=options.long, long_lengths=Uniform(8192, 32768))
    else:
        text = target.api is Api.CHAT
        workload = make_workload(**drawn, shared_prefix=options.shared_prefix, as_text=text)
    records = asyncio.run(offer(target, workload, max_concurrency=options.max_concurrency, console=console))
    objective = Objective(ttft_s=options.ttft_objective, tpot_s=options.tpot_objective)
    summary = summarize(records, objective)
    console.print(summary_table(summary, f"{target.model} at {target.base_url}, {options.rate:g} requests/s"))
    if options.long:
        long = are_long(options.requests, options.long, options.seed)
        usual = [record for record, is_long in zip(records, long, strict=True) if not is_long]
        console.print(summary_table(summarize(usual, objective), "without the long prompts"))
    for error, count in Counter(record.error for record in records if record.error).most_common(3):
        console.print(f"[red]{count} ×[/red] {error}", highlight=False)
    if options.output:
        options.output.write_text(
            json.dumps({"options": _plain(options), "summary": summary.as_json()}, indent=2)
        )
    if summary.succeeded == 0:
        raise SystemExit("no request was answered")


def _offered_model(options: argparse.Namespace) -> str:
    try:
        return only_model(options.base_url, options.api_key)
    except httpx.HTTPError as error:
        raise SystemExit(f"{options.base_url}/v1/models: {error}. Is a server running there?") from None


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    hidden = ("api_key", "output")
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in vars(options).items()
        if name not in hidden
    }


def make_parser() -> argparse.ArgumentParser:
    parser = command("load", __doc__)
    lengths = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:HIGH"
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:30000", help="without /v1 (default: %(default)s)"
    )
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument(
        "--api",
        choices=[api.value for api in Api],
        default=Api.COMPLETIONS.value,
        help="completions sends token ids, chat sends words (default: %(default)s)",
    )
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--requests", type=int, default=64, metavar="N")
    parser.add_argument(
        "--rate", type=float, default=math.inf, help="requests a second (default: all at once)"
    )
    parser.add_argument(
        "--max-concurrency", type=int, metavar="N", help="largest number of concurrent requests"
    )
    parser.add_argument("--input-length", type=parse_lengths, default="512", metavar="LENGTHS", help=lengths)
    parser.add_argument("--output-length", type=parse_lengths, default="64", metavar="LENGTHS", help=lengths)
    parser.add_argument(
        "--shared-prefix",
        type=int,
        default=0,
        metavar="TOKENS",
        help="length of a prefix that all prompts share",
    )
    parser.add_argument("--long", type=float, default=0.0, metavar="SHARE", help="of long prompts")
    sampling_arguments(parser)
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="let answers end early; also for servers without ignore_eos",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ttft-objective", type=float, metavar="SECONDS", help="for goodput")
    parser.add_argument("--tpot-objective", type=float, metavar="SECONDS", help="for goodput")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


if __name__ == "__main__":
    main()
