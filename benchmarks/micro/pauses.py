"""Times between tokens on one GPU under several pause targets: a worker of adaptive mode, without a router.

    python -m benchmarks.micro.pauses --model FOLDER --rate 6 --pause-ms 20,24,50,75

Weights are random; arrivals are a Poisson process, the same for every target. Prints JSON, times in ms.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from benchmarks.lib.command import command
from benchmarks.lib.engines.chunk_engines import WallClock, cuda_config, drive
from benchmarks.lib.load.workload import make_workload, parse_lengths
from benchmarks.lib.report import Percentiles, summarize
from common.garbage_collection import tune_gc
from engine.config import SchedulerConfig
from engine.device.defaults import GPU_TOKEN_TILE, PREFILL_CHUNK
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from simulator.objective import Objective

_MOST_RUNNING = 256


def main() -> None:
    options = _parser().parse_args()
    config = replace(
        cuda_config(options.model, 20_480),
        cuda_graph_max_batch=_MOST_RUNNING,
        scheduler=SchedulerConfig(
            chunk_budget=PREFILL_CHUNK,
            max_running_requests=_MOST_RUNNING,
            max_waiting_requests=1 << 20,
            token_tile=GPU_TOKEN_TILE,
            tpot_target_s=options.tpot_ms / 1e3,
        ),
    )
    runner = ModelRunner(config)
    tune_gc()
    load = make_workload(
        count=round(options.rate * options.seconds),
        rate=options.rate,
        input_lengths=parse_lengths("lognormal:2048:0.8:16384"),
        output_lengths=parse_lengths("uniform:128:512"),
        seed=options.seed,
    )
    objective = Objective(ttft_s=options.ttft_ms / 1e3, tpot_s=options.tpot_ms / 1e3)
    for pause in (options.pause_ms[0], *options.pause_ms):  # the first run is a warm-up, of the kernels too
        scheduler = replace(config.scheduler, pause_target_s=pause / 1e3)
        engine = Engine(replace(config, scheduler=scheduler), runner=runner)
        result = summarize(drive(engine, load, WallClock()), objective)
        print(
            json.dumps(
                {
                    "pause_target": pause,
                    "requests": result.succeeded,
                    "within_targets": round(result.good / result.succeeded, 3),
                    "itl": _spread(result.itl),
                    "tpot": _spread(result.tpot),
                    "ttft": _spread(result.ttft),
                }
            ),
            flush=True,
        )


def _spread(times: Percentiles) -> dict[str, float]:
    return {name: round(1e3 * getattr(times, name), 1) for name in ("p50", "p99", "max")}


def _parser() -> argparse.ArgumentParser:
    parser = command("micro.pauses", __doc__)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="a folder with config.json"
    )
    parser.add_argument("--rate", type=float, default=6.0, metavar="R", help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S")
    parser.add_argument("--ttft-ms", type=float, default=500.0, metavar="MS")
    parser.add_argument("--tpot-ms", type=float, default=15.0, metavar="MS")
    parser.add_argument(
        "--pause-ms", type=lambda text: [float(ms) for ms in text.split(",")], default="20,24,50,75"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
