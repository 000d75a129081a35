"""Offline throughput of the engine on a GPU: all requests at once, no router, random weights.

python -m benchmarks.gpu.offline --model FOLDER --points 1024:128:1000,512:512:512,16384:16:32
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import torch

from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts, submit
from engine.loop.engine import Engine

_WARM_UP = 32
"""Requests of the same shape that are answered first, untimed."""


def measure(
    engine: Engine, prompts: list[list[int]], output_length: int, options: argparse.Namespace
) -> dict[str, float]:
    """Answer everything and report tokens a second, input and output together."""
    before = engine.stats()
    started = time.perf_counter()
    requests = submit(engine, prompts, output_length, options)
    largest = 0
    while engine.has_work:
        engine.step()
        largest = max(largest, len(engine.scheduler.running))
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    stats = engine.stats()
    produced = sum(len(request.output) for request in requests)
    assert produced == output_length * len(prompts)
    return {
        "elapsed_s": round(elapsed, 3),
        "total_tok_per_s": round((sum(map(len, prompts)) + produced) / elapsed, 1),
        "output_tok_per_s": round(produced / elapsed, 1),
        "steps": stats.steps - before.steps,
        "preemptions": stats.preemptions - before.preemptions,
        "largest_batch": largest,
    }


def main() -> None:
    parser = command("gpu.offline", __doc__)
    parser.add_argument("--points", default="1024:128:1000,512:512:512,16384:16:32", metavar="IN:OUT:N,...")
    parser.add_argument("--repeat", type=int, default=1)
    engine_arguments(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    engine = build_engine(options)
    print(
        f"engine ready in {time.perf_counter() - started:.1f} s, {engine.kv.pool.num_pages} pages", flush=True
    )
    results = []
    for name, input_length, output_length, count in _points(options.points):
        vocab = engine.runner.spec.vocab_size
        warm_up = random_prompts(min(_WARM_UP, count), input_length, name, options.seed + 999, vocab)
        measure(engine, warm_up, output_length, options)
        for run in range(options.repeat):
            prompts = random_prompts(count, input_length, name, options.seed + run, vocab)
            result = {"engine": "baton", "workload": name, "requests": count, "run": run}
            result |= measure(engine, prompts, output_length, options)
            results.append(result)
            print(json.dumps(result), flush=True)
            if options.output:
                save_json(options.output, results)
    engine.close()


def _points(text: str) -> Iterator[tuple[str, int, int, int]]:
    for point in text.split(","):
        input_length, output_length, count = map(int, point.split(":"))
        yield f"{input_length}:{output_length}", input_length, output_length, count


if __name__ == "__main__":
    main()
