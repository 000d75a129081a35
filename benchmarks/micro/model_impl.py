"""Speed of one model by Baton's modules and by transformers', in one process, in turns.

OMP_NUM_THREADS=1 python -m benchmarks.micro.model_impl                         # smollm2, on a CPU
python -m benchmarks.micro.model_impl --model FOLDER --device cuda --dtype bfloat16 --load-format dummy

Prefill: new prompts, one token each. Decode: answers of full length to prompts that are cached, with CUDA
graphs on a GPU. Figures are the medians of the rounds, in tokens a second: of CPU time on a CPU, where other
work does not count then.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import torch

from benchmarks.lib.command import command, save_json
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from engine.config import EngineConfig, SchedulerConfig
from engine.core.request import Request, TokenId
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.model_config.model_impl import ModelImpl

_VOCABULARY: Final = 10_000
_IMPLS: Final = (ModelImpl.BATON, ModelImpl.TRANSFORMERS)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second."""

    prefill: float
    decode: float


def engine_of(options: argparse.Namespace, folder: Path, impl: ModelImpl) -> Engine:
    on_gpu = options.device != "cpu"
    longest = options.prompt + options.tokens + 16
    return Engine(
        EngineConfig(
            model_path=folder,
            model_impl=impl,
            device=options.device,
            dtype=options.dtype,
            load_format=options.load_format,
            num_pages=4 * options.many * (longest // 16 + 1),
            max_model_len=longest,
            overlap=on_gpu,
            cuda_graph_max_batch=options.many if on_gpu else 0,
            cuda_graph_max_tokens=512 if on_gpu else 0,
            scheduler=SchedulerConfig(chunk_budget=options.chunk, max_running_requests=options.many),
        )
    )


def run(engine: Engine, prompts: Sequence[Sequence[TokenId]], tokens: int, first_id: int) -> float:
    """Seconds until all prompts are answered with `tokens` tokens."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    began = clock()
    for number, prompt in enumerate(prompts):
        engine.submit(Request(first_id + number, list(prompt), sampling))
    while engine.has_work:
        engine.step()
    return clock() - began


def measure(engine: Engine, options: argparse.Namespace, seed: int) -> Speeds:
    random, many = Random(seed), options.many
    prompts = [[random.randrange(10, _VOCABULARY) for _ in range(options.prompt)] for _ in range(many)]
    first = 3 * seed * many
    prefill = run(engine, prompts, 1, first)
    cached = run(engine, prompts, 1, first + many)
    decode = run(engine, prompts, options.tokens + 1, first + 2 * many) - cached
    return Speeds(prefill=many * options.prompt / prefill, decode=many * options.tokens / decode)


def main() -> None:
    options = make_parser().parse_args()
    folder = model_folder(options.model)
    engines = {impl: engine_of(options, folder, impl) for impl in _IMPLS}
    speeds: dict[ModelImpl, list[Speeds]] = {impl: [] for impl in _IMPLS}
    for turn in range(options.rounds + 1):
        for impl, engine in engines.items():
            speeds[impl].append(measure(engine, options, turn + 1))
    results: dict[str, dict[str, float]] = {}
    for what in ("prefill", "decode"):
        of = {impl: median(getattr(one, what) for one in speeds[impl][1:]) for impl in _IMPLS}
        ratio = of[ModelImpl.TRANSFORMERS] / of[ModelImpl.BATON]
        results[what] = {impl.value: round(value, 1) for impl, value in of.items()} | {
            "ratio": round(ratio, 2)
        }
        print(f"{what}: {results[what]}")
    print(describe_machine())
    if options.output:
        save_json(options.output, results)
    for engine in engines.values():
        engine.close()


def make_parser() -> argparse.ArgumentParser:
    parser = command("model_impl", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--many", type=int, default=4, help="requests at once")
    parser.add_argument("--chunk", type=int, default=2048, help="prompt tokens of a step")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--output", type=Path)
    return parser


if __name__ == "__main__":
    main()
