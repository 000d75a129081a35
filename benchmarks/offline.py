"""Offline throughput of the engine: no router, no network, all requests at once.

    python -m benchmarks.offline --cpu --requests 32 --input-length 1024 --output-length 128

On shared machines, on which wall time is unreliable, `--threads 1` makes its tokens a CPU second comparable.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.sampling_flags import sampling_arguments, sampling_of
from benchmarks.lib.load.workload import Work, make_workload, parse_lengths
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from benchmarks.lib.report import summarize, summary_table
from engine.config import EngineConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.device.cpu_dtype import preferred_cpu_dtype
from engine.loop.engine import Engine


def run(
    engine: Engine,
    workload: Sequence[Work],
    on_tokens: Callable[[int], None],
    sampling: Callable[[int, int], SamplingParams],
) -> list[Record]:
    """Answer everything, to full length; one record a request, in the workload's order.

    `sampling` says how, for a length and a seed. `on_tokens` is called after each step with its number of
    tokens.
    """
    now = time.monotonic()
    records = [Record(sent=now, prompt_tokens=len(work.prompt)) for work in workload]
    for index, work in enumerate(workload):
        assert not isinstance(work.prompt, str)
        asked = sampling(work.max_tokens, index)
        engine.submit(Request(id=index, prompt=work.prompt, sampling=asked))
    while engine.has_work:
        output = engine.step()
        now = time.monotonic()
        for token in output.tokens:
            record = records[token.request.id]
            record.arrivals.append(now)
            record.output_tokens += 1
            if token.finish is not None:
                record.ended = now
        for request, error in output.failed:
            records[request.id].error = str(error)
            records[request.id].ended = now
        on_tokens(len(output.tokens))
    return records


def main() -> None:
    options = make_parser().parse_args()
    console = Console()
    if options.threads:
        torch.set_num_threads(options.threads)
    workload = make_workload(
        count=options.requests,
        rate=math.inf,
        input_lengths=options.input_length,
        output_lengths=options.output_length,
        seed=options.seed,
        shared_prefix=options.shared_prefix,
    )
    longest = max(len(work.prompt) + work.max_tokens for work in workload)
    pool_tokens = options.kv_pool_tokens or sum(len(work.prompt) + work.max_tokens for work in workload)
    chunk = None if options.chunked_prefill_size == -1 else options.chunked_prefill_size
    with console.status(f"loading {options.model} …"):
        engine = Engine(
            EngineConfig(
                model_path=model_folder(options.model),
                device="cpu" if options.cpu else "cuda",
                dtype=options.dtype or (preferred_cpu_dtype() if options.cpu else "bfloat16"),
                page_size=options.page_size,
                num_pages=math.ceil(pool_tokens / options.page_size) + len(workload),
                max_model_len=longest + 1,
                scheduler=SchedulerConfig(chunk_budget=chunk, chunked_prefill=chunk is not None),
                overlap=not options.cpu,
            )
        )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            bar = progress.add_task("tokens", total=sum(work.max_tokens for work in workload))
            began = time.process_time()
            records = run(engine, workload, partial(progress.advance, bar), partial(sampling_of, options))
            cpu_s = time.process_time() - began
        stats = engine.stats()
    finally:
        engine.close()
    title = f"{options.model} on {describe_machine()}: {stats.steps} steps, {stats.preemptions} preemptions"
    summary = summarize(records)
    tokens = sum(record.prompt_tokens + record.output_tokens for record in records)
    console.print(summary_table(summary, title))
    console.print(f"{tokens / cpu_s:,.0f} tokens in and out per CPU second")
    if options.output:
        save_json(options.output, {"title": title, "summary": summary.as_json()})


def make_parser() -> argparse.ArgumentParser:
    parser = command("offline", __doc__)
    lengths = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:HIGH"
    parser.add_argument("--cpu", action="store_true", help="on the CPU, in the dtype that is faster there")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of products (default: all cores)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--requests", type=int, default=16, metavar="N")
    parser.add_argument("--input-length", type=parse_lengths, default="512", metavar="LENGTHS", help=lengths)
    parser.add_argument("--output-length", type=parse_lengths, default="64", metavar="LENGTHS", help=lengths)
    parser.add_argument("--shared-prefix", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--page-size", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--chunked-prefill-size", type=int, default=512, metavar="TOKENS", help="-1: off")
    parser.add_argument(
        "--kv-pool-tokens", type=int, metavar="TOKENS", help="default: room for every request at once"
    )
    parser.add_argument("--seed", type=int, default=0)
    sampling_arguments(parser)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


if __name__ == "__main__":
    main()
