"""Images: the time to first token, and the tokens of text chats beside them, encoded locally and elsewhere.

    python -m benchmarks.images --shape 7b --device cuda --setting "" --setting "--encode-workers 1"
    python -m benchmarks.images --shape tiny --size 112 --seconds 4 --chats 2 --rate 1
    python -m benchmarks.images --model FOLDER --device cuda

Each --setting is a server of its own, one after the other, with these flags of `router`. First, requests with
--counts images come one at a time; no two images are equal. Then --chats text chats run at once, each
followed by another, for --seconds: alone, beside requests of --rate with --images images, and beside requests
of text of as many tokens. --shape writes a model of Qwen2.5-VL's shape, whose weights are random.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import random
import shlex
import string
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Api, Record, Target, only_model, open_client, send
from benchmarks.lib.load.workload import ImageWork, Work
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Percentiles
from benchmarks.lib.servers.server import BatonServer
from benchmarks.lib.vision_folder import SHAPES, write_vision_folder

_SIDE_TOKENS: Final = 16
"""Length of the answers of requests with images."""
_EXTRA: Final = {"ignore_eos": True, "temperature": 0, "timings": True, "return_token_ids": True}
_GRAIN: Final = 32
"""Pixels of a patch of one colour, about, so that a file has the size of a photograph's."""


class Pictures:
    """JPEG files of one size, none of which equals another, as data URLs."""

    def __init__(self, side: int, seed: int) -> None:
        self._side = side
        self._random = np.random.default_rng(seed)

    def take(self, count: int) -> tuple[str, ...]:
        return tuple(self._one() for _ in range(count))

    def _one(self) -> str:
        few = max(2, self._side // _GRAIN)
        colours = self._random.integers(0, 256, (few, few, 3), dtype=np.uint8)
        image = Image.fromarray(colours).resize((self._side, self._side), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


class Texts:
    """Texts of about a number of tokens, none of which begins like another."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.per_token = 1.0
        """Letters of a token."""

    def take(self, tokens: int) -> str:
        return "".join(self._random.choices(string.ascii_lowercase, k=max(1, int(tokens * self.per_token))))


@dataclass(slots=True)
class Inputs:
    pictures: Pictures
    texts: Texts
    request_tokens: int = 0
    """Length of a prompt with --images images."""

    def request(self, count: int, max_tokens: int, at: float = 0.0) -> Work:
        return ImageWork(at, self.texts.take(32), max_tokens, self.pictures.take(count))


async def one_by_one(target: Target, inputs: Inputs, count: int, repeats: int) -> dict[str, Any]:
    """Requests with `count` images, one after the other."""
    works = [inputs.request(count, 2) for _ in range(repeats)]
    async with open_client(target) as client:
        good = _good([await send(client, target, work) for work in works])
    timings = [record.timings or {} for record in good]
    return {
        "images": count,
        "prompt_tokens": good[0].prompt_tokens,
        "ttft_ms": _median_ms(record.ttft for record in good),
        "encode_ms": _median_ms(one.get("encode_s", 0.0) for one in timings),
        "server_ttft_ms": _median_ms(one.get("ttft_s", 0.0) for one in timings),
        "encoded_elsewhere": sum(bool(one.get("encode_worker")) for one in timings),
        "rows_came": sum(len(one.get("row_transfers", ())) for one in timings),
        "timings": timings[-1],
    }


async def chats(
    target: Target, options: argparse.Namespace, side: Sequence[Work], texts: Texts
) -> dict[str, Any]:
    """`options.chats` chats at a time, beside requests that come at their time."""
    end = time.monotonic() + options.seconds

    async def chat() -> list[Record]:
        records = []
        while time.monotonic() < end:
            work = Work(0.0, texts.take(options.prompt), options.tokens)
            records.append(await send(client, target, work))
        return records

    async def beside(work: Work, begin: float) -> Record:
        await asyncio.sleep(begin + work.arrival_s - time.monotonic())
        return await send(client, target, work)

    async with open_client(target) as client:
        begin = time.monotonic()
        others = [asyncio.create_task(beside(work, begin)) for work in side]
        streams = await asyncio.gather(*(chat() for _ in range(options.chats)))
        sides = await asyncio.gather(*others)
    records = _good(list(itertools.chain(*streams)))
    spread = Percentiles.of(itl for record in records for itl in record.itls)
    found = {
        "chats": len(records),
        "itl_ms": {
            name: round(1e3 * getattr(spread, name), 2) for name in ("mean", "p50", "p90", "p99", "max")
        },
        "ttft_ms": _median_ms(record.ttft for record in records),
    }
    if sides:
        found["beside"] = len(_good(sides))
        found["beside_tokens"] = sides[0].prompt_tokens
        found["beside_ttft_ms"] = _median_ms(record.ttft for record in sides)
    return found


def arrivals(options: argparse.Namespace) -> Iterator[float]:
    """Even gaps: the load is the same in each setting."""
    return iter(np.arange(0.5, options.seconds, 1 / options.rate).tolist())


async def measured(options: argparse.Namespace, url: str) -> list[dict[str, Any]]:
    target = Target(url, only_model(url), api=Api.CHAT, extra=_EXTRA)
    inputs = Inputs(Pictures(options.size, options.seed), Texts(options.seed))
    await warm_up(target, options, inputs)
    results = [
        await one_by_one(target, inputs, count, options.repeats)
        for count in map(int, options.counts.split(","))
    ]
    with_images = [inputs.request(options.images, _SIDE_TOKENS, at) for at in arrivals(options)]
    tokens = inputs.request_tokens
    of_text = [Work(at, inputs.texts.take(tokens), _SIDE_TOKENS) for at in arrivals(options)]
    for name, side in (("nothing", []), ("text", of_text), ("images", with_images)):
        results.append({"beside the chats": name, **await chats(target, options, side, inputs.texts)})
    return results


async def warm_up(target: Target, options: argparse.Namespace, inputs: Inputs) -> None:
    """Also finds the letters of a token, and the tokens of a request with images."""
    text = Work(0.0, inputs.texts.take(options.prompt), options.tokens)
    async with open_client(target) as client:
        [of_text] = _good([await send(client, target, text)])
        inputs.texts.per_token = len(str(text.prompt)) / of_text.prompt_tokens
        for _ in range(2):
            request = inputs.request(options.images, _SIDE_TOKENS)
            [of_images] = _good([await send(client, target, request)])
        inputs.request_tokens = of_images.prompt_tokens
    short = argparse.Namespace(**{**vars(options), "seconds": 1.0})
    await chats(target, short, [replace(request, arrival_s=0.2)], inputs.texts)


def _median_ms(seconds: Iterable[float]) -> float:
    return round(1e3 * median(seconds), 1)


def _good(records: list[Record]) -> list[Record]:
    """Raises RuntimeError."""
    if errors := [record.error for record in records if record.error]:
        raise RuntimeError(f"{len(errors)} requests failed: {errors[0]}")
    return records


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
    shown = Table("setting", "", "TTFT p50, ms", "encode, ms", "ITL p50, ms", "ITL p99, ms", "longest, ms")
    for setting, found in results.items():
        for one in found:
            if "images" in one:
                what, figures = f"{one['images']} images", [one["ttft_ms"], one["encode_ms"], "", "", ""]
            else:
                itl = one["itl_ms"]
                what = f"chats beside {one['beside the chats']}"
                figures = [one["ttft_ms"], "", itl["p50"], itl["p99"], itl["max"]]
            shown.add_row(setting or "-", what, *map(str, figures))
    return shown


def run(options: argparse.Namespace, model: Path) -> dict[str, list[dict[str, Any]]]:
    results = {}
    common = ["--model", str(model), "--device", options.device, "--max-body-bytes", "64M"]
    if options.shape is not None:
        common += ["--load-format", "dummy"]
    for setting in options.setting or [""]:
        with BatonServer(*common, *shlex.split(options.flags), *shlex.split(setting)) as server:
            results[setting] = asyncio.run(measured(options, server.url))
        if options.output:
            save_json(options.output, {"made_with": provenance(), "results": results})
    return results


def make_parser() -> argparse.ArgumentParser:
    parser = command("images", __doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--shape", choices=SHAPES, help="Qwen2.5-VL of this size, with random weights")
    which.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--flags", default="", help="of every server")
    parser.add_argument("--setting", action="append", help="flags of one server; may be given several times")
    parser.add_argument("--size", type=int, default=1024, help="pixels along each side of an image")
    parser.add_argument("--counts", default="1,4,8", metavar="N,...", help="images of a request")
    parser.add_argument("--repeats", type=int, default=5, help="requests of each count")
    parser.add_argument("--chats", type=int, default=12, help="text chats at once")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a text chat")
    parser.add_argument("--tokens", type=int, default=128, help="of the answer of a text chat")
    parser.add_argument("--seconds", type=float, default=10.0, help="of chats")
    parser.add_argument(
        "--rate", type=float, default=2.0, help="requests with images a second, beside the chats"
    )
    parser.add_argument("--images", type=int, default=2, help="images of each of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    with TemporaryDirectory() as scratch:
        model = options.model or write_vision_folder(options.shape, Path(scratch) / "model")
        results = run(options, model)
    Console().print(table(results))


if __name__ == "__main__":
    main()
