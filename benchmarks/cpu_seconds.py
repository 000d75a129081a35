"""Tokens per CPU second of one thread, for shared machines, on which wall time is unreliable.

python -m benchmarks.cpu_seconds --dtype bfloat16
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console

from benchmarks.lib.command import command
from benchmarks.lib.load.sampling_flags import sampling_arguments, sampling_of
from benchmarks.lib.load.workload import Fixed, make_workload
from benchmarks.lib.model_folder import model_folder
from benchmarks.offline import run
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.device.cpu_dtype import preferred_cpu_dtype
from engine.engine import Engine


def tokens_per_cpu_second(
    engine: Engine,
    requests: int,
    input_length: int,
    output_length: int,
    sampling: Callable[[int, int], SamplingParams],
) -> float:
    """Prompt and output tokens; the thread that calls is the only one that computes."""
    workload = make_workload(
        count=requests,
        rate=math.inf,
        input_lengths=Fixed(input_length),
        output_lengths=Fixed(output_length),
        seed=requests,
    )
    began = time.thread_time()
    run(engine, workload, lambda tokens: None, sampling)
    return requests * (input_length + output_length) / (time.thread_time() - began)


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(1)
    dtype = options.dtype or preferred_cpu_dtype()
    loads = [tuple(int(number) for number in load.split("x")) for load in options.loads]
    longest = max(prompt + answer for _, prompt, answer in loads)
    engine = Engine(
        EngineConfig(
            model_path=model_folder(options.model),
            dtype=dtype,
            num_pages=max(count * (prompt + answer) for count, prompt, answer in loads) // 16 + 64,
            max_model_len=longest + 1,
            radix_cache=False,
            attention_backend=options.attention_backend,
        )
    )
    sampling = partial(sampling_of, options)
    try:
        tokens_per_cpu_second(engine, 2, 64, 4, sampling)  # what the first step does once
        for count, prompt, answer in loads:
            rate = tokens_per_cpu_second(engine, count, prompt, answer, sampling)
            Console().print(f"{dtype} {count} x ({prompt} in, {answer} out): {rate:,.0f} tokens a CPU second")
    finally:
        engine.close()


def _parser() -> argparse.ArgumentParser:
    parser = command("cpu_seconds", __doc__)
    parser.add_argument("--model", default="smollm2")
    sampling_arguments(parser)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--attention-backend", default="auto", choices=["auto", "cpu", "torch"])
    parser.add_argument(
        "--loads",
        nargs="+",
        default=["16x1024x64", "1x512x64", "16x512x64"],
        metavar="REQUESTSxINPUTxOUTPUT",
    )
    return parser


if __name__ == "__main__":
    main()
