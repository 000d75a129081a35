"""The systems of a comparison, which run one at a time and answer the same requests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.load.client import Record, Target
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.workload import Work
from benchmarks.lib.model_folder import model_folder
from benchmarks.lib.process_tree import PeakMemory
from benchmarks.lib.report import Summary, summarize
from benchmarks.lib.servers.server import BatonServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same for every system."""

    model: str
    device: str
    dtype: str
    together: Sequence[Work]
    """Sent at once."""
    alone: Sequence[Work]
    """Sent one after the other."""
    warmup: Sequence[Work]
    asked: dict[str, float]
    """Sampling, as fields of a request's body, for Baton."""

    @property
    def max_tokens(self) -> int:
        return self.together[0].max_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    together: Summary
    alone: Summary
    peak_bytes: int
    """Peak memory of all its processes."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "together": self.together.as_json(),
            "alone": self.alone.as_json(),
            "peak_bytes": self.peak_bytes,
        }


def baton(comparison: Comparison, mode: str, *flags: str) -> Outcome:
    """Baton from outside, over HTTP, as its users have it."""
    command = ["--mode", mode, "--model", comparison.model, "--served-model-name", "model"]
    command += ["--device", comparison.device, "--dtype", comparison.dtype, *flags]
    with BatonServer(*command) as server, PeakMemory(server.pid) as memory:
        target = Target(server.url, "model", extra={"ignore_eos": True, **comparison.asked})
        _answers(target, comparison.warmup, 1)
        together = _answers(target, comparison.together, None)
        alone = _answers(target, comparison.alone, 1)
    return Outcome(f"Baton {mode}", together, alone, memory.peak_bytes)


def vllm(comparison: Comparison, python: Path) -> Outcome:
    """vLLM's engine from inside its process, under the interpreter of its own environment."""
    script = Path(__file__).parents[2] / "baselines" / "vllm_baseline.py"
    longest = max(len(work.prompt) + work.max_tokens for work in comparison.together)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    # By itself it keeps a core free for its other processes, which would be half of a laptop's.
    environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "records.json"
        job = {**_job(comparison), "max_model_len": longest + 1, "output": str(output)}
        process = subprocess.Popen(
            [python, script], stdin=subprocess.PIPE, stdout=sys.stderr, text=True, cwd=folder, env=environment
        )
        with PeakMemory(process.pid) as memory:
            process.communicate(json.dumps(job))
        if not output.exists():
            raise SystemExit(f"vLLM failed with status {process.returncode}; its error is above")
        return _outcome("vLLM", json.loads(output.read_text()), memory.peak_bytes)


def _job(comparison: Comparison) -> dict[str, Any]:
    """The first batch warms up, the second is all at once, each of the others one request."""
    batches = [[comparison.warmup[0].prompt], [work.prompt for work in comparison.together]]
    return {
        "model_path": str(model_folder(comparison.model)),
        "dtype": comparison.dtype,
        "max_tokens": comparison.max_tokens,
        "batches": batches + [[work.prompt] for work in comparison.alone],
    }


def _outcome(name: str, results: list[list[dict[str, Any]]], peak_bytes: int) -> Outcome:
    _, together, *alone = ([Record(**fields) for fields in batch] for batch in results)
    return Outcome(
        name, summarize(together), summarize([record for batch in alone for record in batch]), peak_bytes
    )


def _answers(target: Target, workload: Sequence[Work], max_concurrency: int | None) -> Summary:
    records = asyncio.run(offer(target, workload, max_concurrency=max_concurrency))
    for record in records:
        if record.error:
            raise SystemExit(f"A request failed, so there is nothing to compare: {record.error}")
    return summarize(records)
