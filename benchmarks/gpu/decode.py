"""Time of a decode step through the whole engine, on the host and on the GPU.

python -m benchmarks.gpu.decode --model FOLDER --points 1:1024,64:4096,256:1024
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts, submit
from engine.loop.engine import Engine

_STEPS = 100
_PROFILED = 12
_SETTLING = 10


class Stopwatch:
    """Adds up the time spent in a method of one object."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        call: Callable[..., Any] = getattr(self._owner, self._name)

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = call(*arguments)
            self.seconds += time.perf_counter() - started
            return result

        setattr(self._owner, self._name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        delattr(self._owner, self._name)


def fill(engine: Engine, batch: int, context: int, options: argparse.Namespace, vocab: int) -> None:
    """Prefill `batch` requests, so that every following step decodes one token of each.

    The mean context is `context` tokens in the middle of the measured steps. Requests prefilled first decode
    while the others are prefilled.
    """
    prefilling = batch * context // (engine.scheduler.config.chunk_budget or context)
    length = max(1, context - prefilling // 2 - _SETTLING - _STEPS // 2)
    prompts = random_prompts(batch, length, f"decode-{batch}", options.seed, vocab)
    requests = submit(engine, prompts, 4 * _STEPS, options, first_id=engine.stats().steps * 10_000)
    while any(not request.output for request in requests):
        engine.step()
    for _ in range(_SETTLING):
        engine.step()


def mean_context(engine: Engine) -> float:
    return statistics.fmean(r.num_tokens for r in engine.scheduler.running if len(r.output) > 1)


def measure(engine: Engine) -> dict[str, float]:
    """Milliseconds a step, and how many of them the host spent planning, preparing and launching it."""
    times = []
    with (
        Stopwatch(engine.scheduler, "plan") as plan,
        Stopwatch(engine.runner, "prepare") as prepare,
        Stopwatch(engine.runner, "launch") as launch,
    ):
        last = time.perf_counter()
        for _ in range(_STEPS):
            engine.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
    return {
        "step_ms": round(1e3 * statistics.fmean(times), 3),
        "step_p50_ms": round(1e3 * statistics.median(times), 3),
        "host_plan_ms": round(1e3 * plan.seconds / _STEPS, 3),
        "host_prepare_ms": round(1e3 * prepare.seconds / _STEPS, 3),
        "host_launch_ms": round(1e3 * launch.seconds / _STEPS, 3),
    }


def profile(engine: Engine) -> dict[str, Any]:
    """How much of the time the GPU is idle, and which kernels fill the rest."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(_PROFILED):
            engine.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in device)
    busy, end = 0.0, spans[0][0]
    for begin, finish in spans:
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    total = end - spans[0][0]
    by_name: Counter[str] = Counter()
    for event in device:
        by_name[event["name"]] += event["dur"]
    return {
        "idle_percent": round(100 * (1 - busy / total), 2),
        "kernels_per_step": round(len(device) / _PROFILED),
        "ms_per_step": {name[:110]: round(us / 1e3 / _PROFILED, 4) for name, us in by_name.most_common(16)},
    }


def main() -> None:
    parser = command("gpu.decode", __doc__)
    parser.add_argument("--points", default="1:1024,64:4096,256:1024", metavar="BATCH:CONTEXT,...")
    engine_arguments(parser)
    options = parser.parse_args()
    engine = build_engine(options)
    vocab = engine.runner.spec.vocab_size
    results = []
    for point in options.points.split(","):
        batch, context = map(int, point.split(":"))
        fill(engine, batch, context, options, vocab)
        before = mean_context(engine)
        result = {"batch": batch, "context": context} | measure(engine)
        result["mean_context"] = round((before + mean_context(engine)) / 2)
        result |= profile(engine)
        results.append(result)
        print(json.dumps(result, indent=1), flush=True)
        for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
        if options.output:
            save_json(options.output, results)
    engine.close()


if __name__ == "__main__":
    main()
