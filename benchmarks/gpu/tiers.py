"""Copies between the KV pool of one GPU and host memory, while requests decode.

    python -m benchmarks.gpu.tiers --model FOLDER --batch 64 --context 1024

Weights are random. Reports the rate of demotions and promotions, digests included; the time between decode
steps beside them and without; and the time in which a prefix of --prefix tokens comes up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu.decode import fill
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments
from benchmarks.lib.report import Percentiles
from engine.engine import Engine
from engine.executor.runner import ModelRunner
from engine.kv_tiers.copier import BackgroundCopier
from engine.kv_tiers.host_pages import HostPages
from engine.kv_tiers.jobs import Demote, Job, Promote
from kv_transfer import KVLayout
from worker.kv_pool_access import digester_of, layout_of, memory_of

_STEPS = 250
_UNDER_WAY = 2
_BATCH_BYTES = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tiers", description=__doc__)
    engine_arguments(parser)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="requests that decode")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--prefix", type=int, default=32_768, metavar="TOKENS")
    options = parser.parse_args()
    engine = build_engine(options)
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    pool = runner.kv
    slots = options.prefix // options.page_size
    pages = engine.kv.pool.take(slots, owner=-1 << 40)
    layout: KVLayout = layout_of(runner)
    began = time.monotonic()
    host = HostPages(pool.tensor, slots)
    pinned_s = time.monotonic() - began
    copier = BackgroundCopier(
        host, digester_of(pool, memory_of(pool), layout), options.page_size, device="cuda"
    )
    copier.start()
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "page_bytes": pool.page_bytes,
        "prefix_bytes": slots * pool.page_bytes,
        "pinning_s": round(pinned_s, 2),
        "promotion_s": [round(_alone(copier, slots, pages), 4) for _ in range(3)],
    }
    batch = max(1, _BATCH_BYTES // pool.page_bytes)
    jobs: dict[str, Callable[[int, Sequence[int], Sequence[int]], Job] | None] = {
        "no copies": None,
        "demotions": lambda id, pages, slots: Demote(id, tuple(pages), tuple(slots)),
        "promotions": lambda id, pages, slots: Promote(id, tuple(slots), tuple(pages)),
        "no copies again": None,
    }
    for name, make in jobs.items():
        fill(engine, options.batch, options.context, options, engine.runner.spec.vocab_size)
        figures[name] = _decoding(engine, copier, make, pages, batch, pool.page_bytes)
        for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
    copier.stop()
    print(json.dumps(figures, indent=1))


def _alone(copier: BackgroundCopier, slots: int, pages: Sequence[int]) -> float:
    """Seconds in which a prefix comes up."""
    began = time.monotonic()
    copier.submit(Promote(0, tuple(range(slots)), tuple(pages)))
    while not copier.poll():
        time.sleep(1e-4)
    return time.monotonic() - began


def _decoding(
    engine: Engine,
    copier: BackgroundCopier,
    make: Callable[[int, Sequence[int], Sequence[int]], Job] | None,
    pages: Sequence[int],
    batch: int,
    page_bytes: int,
) -> dict[str, float]:
    """Times between steps in milliseconds, and GB/s of copies."""
    times: list[float] = []
    copied = submitted = at = 0
    began = last = time.monotonic()
    while len(times) < _STEPS:
        copied += len(copier.poll())
        while make is not None and submitted - copied < _UNDER_WAY * 4:  # one step copies several
            chosen = pages[at : at + batch]
            copier.submit(make(submitted, chosen, range(at, at + len(chosen))))
            at = (at + batch) % (len(pages) - batch + 1)
            submitted += 1
        engine.step()
        times.append((time.monotonic() - last) * 1e3)
        last = time.monotonic()
    while copied < submitted:
        copied += len(copier.poll())
        time.sleep(1e-3)
    seconds = time.monotonic() - began
    spread = Percentiles.of(times[5:])
    return {
        "steps": len(times),
        "p50_ms": round(spread.p50, 3),
        "p99_ms": round(spread.p99, 3),
        "gb_per_s": round(submitted * batch * page_bytes / seconds / 1e9, 1),
    }


if __name__ == "__main__":
    main()
