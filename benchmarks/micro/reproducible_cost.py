"""Cost of `--reproducible` on a CPU: both kinds of engine in one process, in turns.

OMP_NUM_THREADS=1 python -m benchmarks.micro.reproducible_cost                  # smollm2
python -m benchmarks.micro.reproducible_cost --model FOLDER --dtype bfloat16 --batches 1 8 32

Decode: CPU time of a token of an answer, for each number of answers at once. Prefill: that of a prompt.
Figures are medians of the rounds; the ratio is the median of the pairs of a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from benchmarks.lib.command import command, save_json
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from benchmarks.micro.model_impl import run
from engine.config import UNIFORM, EngineConfig, SchedulerConfig
from engine.loop.engine import Engine

_VOCABULARY: Final = 10_000
_BACKENDS: Final = {"default": "auto", "reproducible": UNIFORM}


def engine_of(options: argparse.Namespace, folder: Path, backend: str) -> Engine:
    longest, most = options.input_length + options.tokens + 16, max(options.batches)
    return Engine(
        EngineConfig(
            model_path=folder,
            dtype=options.dtype,
            load_format=options.load_format,
            attention_backend=backend,
            num_pages=3 * most * (longest // 16 + 1),
            max_model_len=longest,
            scheduler=SchedulerConfig(chunk_budget=options.chunk, max_running_requests=most),
        )
    )


def measure(engine: Engine, options: argparse.Namespace, random: Random, ids: count[int]) -> dict[str, float]:
    """Milliseconds of CPU time by what is measured."""
    found = {}
    for batch in options.batches:
        prompts = [
            [random.randrange(10, _VOCABULARY) for _ in range(options.input_length)] for _ in range(batch)
        ]
        prefill, cached, whole = (
            run(engine, prompts, tokens, next(ids) * max(options.batches))
            for tokens in (1, 1, options.tokens + 1)
        )
        found[f"decode of {batch}"] = 1000 * (whole - cached) / options.tokens / batch
        found["prefill"] = 1000 * prefill / batch
    return found


def main() -> None:
    options = make_parser().parse_args()
    folder = model_folder(options.model)
    engines = {name: engine_of(options, folder, backend) for name, backend in _BACKENDS.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    ids: count[int] = count()
    for turn in range(options.rounds + 1):
        for name, engine in engines.items():
            rounds[name].append(measure(engine, options, Random(turn), ids))
    default, uniform = (rounds[name][1:] for name in _BACKENDS)
    results = {what: _row(default, uniform, what) for what in default[0]}
    for what, row in results.items():
        print(f"{what}: {row}")
    print(describe_machine())
    if options.output:
        save_json(options.output, results)
    for engine in engines.values():
        engine.close()


def _row(
    default: Sequence[dict[str, float]], uniform: Sequence[dict[str, float]], what: str
) -> dict[str, float]:
    pairs = [(one[what], other[what]) for one, other in zip(default, uniform, strict=True)]
    before, after = (median(column) for column in zip(*pairs, strict=True))
    ratio = median(other / one for one, other in pairs)
    return {"default ms": round(before, 2), "reproducible ms": round(after, 2), "ratio": round(ratio, 2)}


def make_parser() -> argparse.ArgumentParser:
    parser = command("reproducible_cost", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--input-length", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of an answer")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="answers at once")
    parser.add_argument("--chunk", type=int, default=512, help="prompt tokens of a step")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--output", type=Path)
    return parser


if __name__ == "__main__":
    main()
