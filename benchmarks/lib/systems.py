"""Who takes part in a comparison: each answers the same requests with the machine to itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.lib.client import Record, Target
from benchmarks.lib.memory import PeakMemory
from benchmarks.lib.report import Summary, summarize
from benchmarks.lib.server import BatonServer
from benchmarks.lib.workload import Work
from benchmarks.load import offer
from engine.loader.checkpoint import resolve

__all__ = ["Contest", "Outcome", "baton", "transformers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The same for every contestant."""

    model: str
    device: str
    dtype: str
    together: Sequence[Work]
    """Sent at once."""
    alone: Sequence[Work]
    """Sent one after the other."""
    warmup: Sequence[Work]
    asked: dict[str, float]
    """Sampling, as fields of a request's body; transformers is always greedy."""

    @property
    def max_tokens(self) -> int:
        return self.together[0].max_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    together: Summary
    alone: Summary
    peak_bytes: int
    """Of all its processes."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "together": self.together.as_json(),
            "alone": self.alone.as_json(),
            "peak_bytes": self.peak_bytes,
        }


def baton(contest: Contest, mode: str, *flags: str) -> Outcome:
    """Baton from outside, over HTTP, as its users have it."""
    command = ["--mode", mode, "--model", contest.model, "--served-model-name", "model"]
    command += ["--device", contest.device, "--dtype", contest.dtype, *flags]
    with BatonServer(*command) as server, PeakMemory(server.pid) as memory:
        target = Target(server.url, "model", extra={"ignore_eos": True, **contest.asked})
        _answers(target, contest.warmup, 1)
        together = _answers(target, contest.together, None)
        alone = _answers(target, contest.alone, 1)
    return Outcome(f"Baton {mode}", together, alone, memory.peak_bytes)


def transformers(contest: Contest) -> Outcome:
    """transformers' `generate` from inside its process: all requests of a batch in one call."""
    batches = [[contest.warmup[0].prompt], [work.prompt for work in contest.together]]
    batches += [[work.prompt] for work in contest.alone]
    job = {
        "model_path": str(resolve(contest.model).path),
        "device": contest.device,
        "dtype": contest.dtype,
        "max_tokens": contest.max_tokens,
        "batches": batches,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transformers_baseline"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with PeakMemory(process.pid) as memory:
        output, _ = process.communicate(json.dumps(job))
    if process.returncode != 0:
        raise SystemExit(f"transformers failed with status {process.returncode}; its error is above")
    _, together, *alone = ([Record(**fields) for fields in batch] for batch in json.loads(output))
    return Outcome(
        "transformers",
        summarize(together),
        summarize([record for batch in alone for record in batch]),
        memory.peak_bytes,
    )


def _answers(target: Target, workload: Sequence[Work], max_concurrency: int | None) -> Summary:
    records = asyncio.run(offer(target, workload, max_concurrency=max_concurrency))
    for record in records:
        if record.error:
            raise SystemExit(f"A request failed, so there is nothing to compare: {record.error}")
    return summarize(records)
