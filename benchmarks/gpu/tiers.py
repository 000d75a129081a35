"""Copies between the KV pool of one GPU and host memory, while requests decode.

    python -m benchmarks.gpu.tiers --model FOLDER --batch 64 --context 1024

Weights are random. Reports the rate of demotions and promotions, digests included; the time between decode
steps beside them and without; and the time in which a prefix of --prefix tokens comes up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu.decode import fill
from benchmarks.lib.command import command
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments
from benchmarks.lib.report import Percentiles
from engine.device.small_copies import use_kernels
from engine.executor.runner import ModelRunner
from engine.kv.tiers.copier import BackgroundCopier
from engine.kv.tiers.host_pages import HostPages
from engine.kv.tiers.jobs import Demote, Job, Promote
from kv_transfer.integrity.device_digest import DeviceDigester
from worker.kv_pool_access import layout_of

_STEPS = 250
_QUEUED_BYTES = 1 << 30
"""More than the link copies during a step: the copies never wait for the engine."""
_KINDS = ("no copies", "demotions", "promotions", "both", "no copies again")


def tier_arguments(parser: argparse.ArgumentParser) -> None:
    engine_arguments(parser)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="requests that decode")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--prefix", type=int, default=32_768, metavar="TOKENS")
    parser.add_argument("--job-mib", type=int, default=32, metavar="MIB", help="copied by a job")
    parser.add_argument(
        "--copy-engine", action="store_true", help="for the small copies of steps too, as without tiers"
    )
    parser.add_argument("--scattered", action="store_true", help="no two pages of a job lie side by side")


def main() -> None:
    parser = command("gpu.tiers", __doc__)
    tier_arguments(parser)
    options = parser.parse_args()
    bench = Bench(options)
    figures = bench.alone(options.scattered)
    for kind in _KINDS:
        figures[kind] = bench.beside_decodes(kind, options.job_mib << 20, options.scattered)
    bench.close()
    print(json.dumps(figures, indent=1))


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._engine = build_engine(options)
        runner = self._engine.runner
        assert isinstance(runner, ModelRunner)
        if not options.copy_engine:
            use_kernels(torch.device("cuda"))
        self._vocab = runner.spec.vocab_size
        self.pool = runner.kv
        self.layout = layout_of(runner)
        slots = options.prefix // options.page_size
        self._pages = self._engine.kv.pool.take(slots, owner=-1 << 40)
        began = time.monotonic()
        self._host = HostPages(self.pool.memory, slots)
        self._pinning_s = time.monotonic() - began
        self.copier = self.start(DeviceDigester(self.pool.memory, self.layout))

    def start(self, digester: DeviceDigester) -> BackgroundCopier:
        copier = BackgroundCopier(self._host, digester.begin, self.pool.page_size, device="cuda")
        copier.start()
        return copier

    def close(self) -> None:
        self.copier.stop()

    def alone(self, scattered: bool) -> dict[str, Any]:
        """Seconds in which the whole prefix comes up, verified."""
        slots, pages = self._places(scattered)
        seconds = []
        for _ in range(3):
            began = time.monotonic()
            self.copier.submit(Promote(0, tuple(slots), tuple(pages)))
            while not self.copier.poll():
                time.sleep(1e-4)
            seconds.append(round(time.monotonic() - began, 4))
        return {
            "device": torch.cuda.get_device_name(),
            "page_bytes": self.pool.page_bytes,
            "prefix_bytes": len(slots) * self.pool.page_bytes,
            "pinning_s": round(self._pinning_s, 2),
            "promotion_s": seconds,
        }

    def beside_decodes(self, kind: str, job_bytes: int, scattered: bool) -> dict[str, float]:
        """Times between decode steps in milliseconds, and GB/s of copies beside them."""
        options, engine = self._options, self._engine
        fill(engine, options.batch, options.context, options, self._vocab)
        figures = self._copying(kind, job_bytes, scattered)
        for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
        return figures

    def _copying(self, kind: str, job_bytes: int, scattered: bool) -> dict[str, float]:
        slots, pages = self._places(scattered)
        size = min(max(1, job_bytes // self.pool.page_bytes), len(slots))
        queue = max(2, _QUEUED_BYTES // (size * self.pool.page_bytes)) if kind in _JOBS else 0
        times: list[float] = []
        submitted = copied = at = 0
        began = last = time.monotonic()
        while len(times) < _STEPS:
            copied += len(self.copier.poll())
            while submitted - copied < queue:
                part = slice(at, at + size)
                make = _JOBS[kind][submitted % len(_JOBS[kind])]
                self.copier.submit(make(submitted, slots[part], pages[part]))
                at = at + size if at + 2 * size <= len(slots) else 0
                submitted += 1
            self._engine.step()
            times.append((time.monotonic() - last) * 1e3)
            last = time.monotonic()
        copied += len(self.copier.poll())
        rate = copied * size * self.pool.page_bytes / (time.monotonic() - began)
        while copied < submitted:
            copied += len(self.copier.poll())
            time.sleep(1e-3)
        spread = Percentiles.of(times[5:])
        return {
            "steps": len(times),
            "p50_ms": round(spread.p50, 3),
            "p99_ms": round(spread.p99, 3),
            "gb_per_s": round(rate / 1e9, 1),
        }

    def _places(self, scattered: bool) -> tuple[list[int], list[int]]:
        """Slots and pages of the prefix."""
        slots, pages = list(range(len(self._pages))), list(self._pages)
        if scattered:
            random.Random(1).shuffle(slots)
        return slots, pages


def _demote(id: int, slots: Sequence[int], pages: Sequence[int]) -> Job:
    return Demote(id, tuple(pages), tuple(slots))


def _promote(id: int, slots: Sequence[int], pages: Sequence[int]) -> Job:
    return Promote(id, tuple(slots), tuple(pages))


_JOBS: dict[str, list[Callable[[int, Sequence[int], Sequence[int]], Job]]] = {
    "demotions": [_demote],
    "promotions": [_promote],
    "both": [_demote, _promote],
}


if __name__ == "__main__":
    main()
