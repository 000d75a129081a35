"""What LoRA adapters cost a service: the first token by a cold, a warm and no adapter, and tokens after it.

    router --model MODEL --mode disagg --enable-lora --max-loras 16 --max-cpu-loras 16 --admin-key-file keys
    python -m benchmarks.adapters --admin-key KEY --adapter FOLDER --kept 16

Adapters are copies of --adapter, which differ in a field of their configuration, in a folder that the workers
see. One more than a worker keeps are loaded. First, requests come one at a time: without an adapter; with one
that was used just before; and with each in turn, so that the workers have unloaded it and load it again for
the request. Then --batch requests run together, with the adapters of --counts in turn.

In disagg mode, "hidden" is the share of the decode worker's load that ended before the KV of the prompt came:
a cold adapter lengthens the time from the first token to the last, beside that of a warm one, by the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, only_model, open_client, send
from benchmarks.lib.load.workload import Work, make_workload, parse_lengths

_LOADING_S = 600.0


def save_copies(adapter: Path, count: int, folder: Path) -> dict[str, Path]:
    """Copies of an adapter, of which no two have the same digest."""
    copies = {}
    for number in range(count):
        copy = folder / f"copy-{number}"
        shutil.copytree(adapter, copy)
        config = copy / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"copy": number}))
        copies[f"benchmark-{number}"] = copy
    return copies


def admin_client(options: argparse.Namespace) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {options.admin_key}"}
    return httpx.AsyncClient(base_url=options.base_url, headers=headers, timeout=_LOADING_S, trust_env=False)


async def load(admin: httpx.AsyncClient, copies: Mapping[str, Path]) -> None:
    """Raises httpx.HTTPError."""
    for name, path in copies.items():
        body = {"lora_name": name, "lora_path": str(path)}
        (await admin.post("/v1/load_lora_adapter", json=body)).raise_for_status()


async def unload(admin: httpx.AsyncClient, names: Iterable[str]) -> None:
    for name in names:
        await admin.post("/v1/unload_lora_adapter", json={"lora_name": name})


class Prompts:
    """Prompts of one length, none of which begins like another."""

    def __init__(self, length: int, seed: int) -> None:
        self._lengths = parse_lengths(str(length))
        self._seed = seed

    def take(self, count: int, max_tokens: int) -> list[Work]:
        self._seed += 1
        return make_workload(
            count=count,
            rate=1.0,
            input_lengths=self._lengths,
            output_lengths=parse_lengths(str(max_tokens)),
            seed=self._seed,
        )


async def one_by_one(target: Target, models: Sequence[str], prompts: Prompts) -> list[Record]:
    """A request of a few tokens for each of these models, one after the other. Raises RuntimeError."""
    records = []
    async with open_client(target) as client:
        for model, work in zip(models, prompts.take(len(models), 4), strict=True):
            records.append(await send(client, replace(target, model=model), work))
    return _good(records)


async def together(target: Target, models: Sequence[str], prompts: Prompts, tokens: int) -> list[Record]:
    """A request for each of these models, all at once. Raises RuntimeError."""
    async with open_client(target) as client:
        works = prompts.take(len(models), tokens)
        sent = [send(client, replace(target, model=m), w) for m, w in zip(models, works, strict=True)]
        return _good(await asyncio.gather(*sent))


def _good(records: list[Record]) -> list[Record]:
    if errors := [record.error for record in records if record.error]:
        raise RuntimeError(f"{len(errors)} requests failed: {errors[0]}")
    return records


def first_tokens(records: Sequence[Record]) -> dict[str, float]:
    """Medians in milliseconds."""
    return {
        "ttft_ms": _ms(record.ttft for record in records),
        "e2e_ms": _ms(record.e2e for record in records),
        "rest_ms": _ms(record.e2e - record.ttft for record in records),
        "prefill_load_ms": _ms(_loads(records, "prefill_worker")),
        "decode_load_ms": _ms(_loads(records, "decode_worker")),
    }


def _loads(records: Sequence[Record], role: str) -> list[float]:
    """Seconds until the worker had the adapters of requests that it had to load; a mixed worker is both."""
    timings = [record.timings or {} for record in records]
    found = [(each.get("adapter_loads") or {}).get(each.get(role)) for each in timings]
    return [seconds for seconds in found if seconds]


def _ms(seconds: Iterable[float]) -> float:
    """The median; 0 of none."""
    found = list(seconds)
    return round(1e3 * median(found), 1) if found else 0.0


def hidden(warm: Mapping[str, float], cold: Mapping[str, float]) -> float | None:
    """Share of the decode worker's load that a reader does not wait for; None: nothing was loaded.

    A worker reports no load that ends before the KV comes, so it counts as that of the prefill worker.
    """
    load_ms = max(cold["prefill_load_ms"], cold["decode_load_ms"])
    exposed_ms = max(0.0, cold["rest_ms"] - warm["rest_ms"])
    return round(max(0.0, 1 - exposed_ms / load_ms), 3) if load_ms else None


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    with TemporaryDirectory(dir=options.folder) as folder:
        copies = save_copies(options.adapter, options.kept + 1, Path(folder))
        async with admin_client(options) as admin:
            try:
                await load(admin, copies)
                return await measured(options, list(copies))
            finally:
                await unload(admin, copies)


async def measured(options: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    base = only_model(options.base_url)
    target = Target(options.base_url, base, extra={"ignore_eos": True, "temperature": 0, "timings": True})
    prompts, count = Prompts(options.prompt, options.seed), options.requests
    results: list[dict[str, Any]] = []
    await one_by_one(target, [base] * 2, prompts)
    kinds = {
        "none": [base] * count,
        "warm": [names[0]] * (1 + count),
        "cold": [names[(1 + place) % len(names)] for place in range(len(names) + count)],
    }
    for kind, asked in kinds.items():
        records = await one_by_one(target, asked, prompts)
        results.append({"adapter": kind, **first_tokens(records[-count:])})
        print(json.dumps(results[-1]), flush=True)
    results[-1]["hidden"] = hidden(results[-2], results[-1])
    for used in map(int, options.counts.split(",")):
        turns = cycle(names[:used] or [base])
        asked = list(islice(turns, options.batch))
        await together(target, asked, prompts, 2)  # loads them
        records = await together(target, asked, prompts, options.tokens)
        ttft_ms, tpot_ms = _ms(r.ttft for r in records), round(1e3 * median(r.tpot for r in records), 2)
        results.append({"adapters": used, "batch": options.batch, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms})
        print(json.dumps(results[-1]), flush=True)
    return results


def table(results: Sequence[dict[str, Any]]) -> Table:
    loads = ("loaded by the prefill worker, ms", "by the decode worker, ms", "hidden")
    shown = Table("", "TTFT p50, ms", "to the fourth token", *loads, "TPOT p50, ms")
    for result in results:
        if "adapter" in result:
            names = ("ttft_ms", "e2e_ms", "prefill_load_ms", "decode_load_ms")
            share = result.get("hidden")
            cells = [*(str(result[name]) for name in names), "" if share is None else f"{share:.0%}", ""]
            shown.add_row(result["adapter"], *cells)
        else:
            what = f"{result['adapters']} in {result['batch']} requests"
            shown.add_row(what, str(result["ttft_ms"]), "", "", "", "", str(result["tpot_ms"]))
    return shown


def make_parser() -> argparse.ArgumentParser:
    parser = command("adapters", __doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="without /v1")
    parser.add_argument("--admin-key", required=True)
    parser.add_argument("--adapter", type=Path, required=True, help="folder of PEFT")
    parser.add_argument("--folder", type=Path, help="for the copies; default: the machine's temporary one")
    parser.add_argument("--kept", type=int, default=16, help="--max-cpu-loras of the router")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--requests", type=int, default=20, help="of each kind, for the first token")
    parser.add_argument("--counts", default="0,1,4,16", metavar="N,...", help="adapters that run together")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, for the time between tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    results = asyncio.run(run(options))
    Console().print(table(results))
    if options.output:
        save_json(options.output, results)


if __name__ == "__main__":
    main()
