"""What `router cache` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def cache_lines(workers: Sequence[Mapping[str, Any]], *, cleared: bool = False) -> Iterator[str]:
    """Table of `router.command.admin.caches`. `cleared`: what `router cache clear` did."""
    answered = [worker for worker in workers if not worker["trouble"]]
    if cleared and not any(place["cleared_bytes"] for worker in answered for place in worker["places"]):
        yield "nothing was cleared: no such KV is cached, or requests read it"
    for worker in workers:
        if worker["trouble"]:
            yield f"{worker['worker']}: {worker['trouble']}"
            continue
        yield f"{worker['worker']}: {worker['input_tokens']:,} input tokens"
        yield f"  {'':<6} {'tokens':>12} {'bytes':>10} {'of':>10} {'tokens hit':>12} {'of input':>9}"
        for place in worker["places"]:
            tokens = "" if place["tokens"] is None else f"{place['tokens']:,}"
            share = place["hit_tokens"] / max(1, worker["input_tokens"])
            line = (
                f"  {place['name']:<6} {tokens:>12} {_size(place['bytes']):>10}"
                f" {_size(place['capacity_bytes']):>10} {place['hit_tokens']:>12,} {share:>9.1%}"
            )
            cleared = place["cleared_bytes"]
            yield f"{line}  {_size(cleared)} cleared" if cleared else line
        for kept in worker["retained"]:
            name = "/".join(filter(None, (kept["client"], kept["key"]))) or "(no key)"
            yield f"  retained by {name}: {kept['tokens']:,} tokens, for {_duration(kept['seconds'])}"


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def _duration(seconds: float) -> str:
    minutes = round(seconds) // 60
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {round(seconds) % 60} s"
    )
