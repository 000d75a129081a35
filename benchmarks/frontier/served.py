"""Shares of good answers of real servers, for every variant of a mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from rich.console import Console

from benchmarks.frontier.cells import Regime, Workload
from benchmarks.frontier.search import ShareAt
from benchmarks.lib.load.client import Target
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.workload import Work
from benchmarks.lib.report import summarize
from benchmarks.lib.servers.mode_servers import MODEL_NAME, ModeServers, require_answers
from simulator.deployment import TUNED_STEP_SHARE
from simulator.traffic import Arrival

_FIRST_ID, _LAST_ID = 1_000, 30_000


def served_variants(mode: str, servers: ModeServers, regime: Regime) -> dict[str, ModeServers]:
    """Variants by name; those of `benchmarks.frontier.simulated` unless given by flags."""
    own = replace(servers, objective=regime.objective)
    if mode == "mixed":
        step = f"{1e3 * TUNED_STEP_SHARE * regime.tpot_s:g}"
        tuned = ("--itl-target-ms", step, *servers.mode_flags[mode])
        return {
            f"mixed x{servers.workers}": own,
            f"mixed x{servers.workers} step {step} ms": replace(
                own, mode_flags={**servers.mode_flags, mode: tuned}
            ),
        }
    splits = [servers.prefill_workers]
    if mode == "disagg":
        splits += [split for split in range(1, servers.workers) if split != servers.prefill_workers]
    return {
        f"{mode} {split}:{servers.workers - split}": replace(own, prefill_workers=split) for split in splits
    }


@contextmanager
def serving(
    mode: str,
    servers: ModeServers,
    regime: Regime,
    workload: Workload,
    console: Console,
    *,
    seconds: float,
    warm_up: float,
    seeds: Sequence[int],
    scale: float,
) -> Iterator[ShareAt]:
    """Context with a server of that mode; yields a function that sends requests. Raises ServerFailed."""
    with servers.server(mode) as server:
        target = Target(server.url, MODEL_NAME, extra={"ignore_eos": True, "temperature": 0})

        def share_at(rate: float) -> float:
            good = total = 0
            for seed in seeds:
                arrivals = workload.arrivals(rate, seconds, seed, warm_up=warm_up, scale=scale)
                records = asyncio.run(offer(target, _works(arrivals, seed), console=console))
                counted = [r for r, a in zip(records, arrivals, strict=True) if a.at >= warm_up]
                good += summarize(counted, regime.objective).good
                total += len(counted)
                require_answers(records)
            share = good / total if total else 0.0
            console.print(f"{mode}, {regime.name}, {workload.name}: {rate:.2f} requests/s, {share:.1%} good")
            return share

        yield share_at


def _works(arrivals: Sequence[Arrival], seed: int) -> list[Work]:
    rng = np.random.default_rng(seed)
    return [
        Work(a.at, [int(token) for token in rng.integers(_FIRST_ID, _LAST_ID, a.prompt_tokens)], a.max_tokens)
        for a in arrivals
    ]
