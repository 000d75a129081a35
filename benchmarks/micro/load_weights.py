"""Time to load a checkpoint beside the time to read its files, from the disk and from the page cache.

python -m benchmarks.micro.load_weights --config FOLDER --write /tmp/checkpoint
python -m benchmarks.micro.load_weights --model /tmp/checkpoint --device cuda --tensor-parallel-size 2

--write makes the checkpoint: FP8 with a scale per output feature (compressed-tensors), random values, in the
shape of the config.json in FOLDER, for models with the tensors of Llama. Reading is by blocks of 16 MiB on
--threads threads into memory that is not kept. Files leave the page cache before each cold figure, on file
systems that follow posix_fadvise; "GB/s" says whether they did. The ranks of a model load at the same time,
each in a process of its own, whose device has been started before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import torch

from benchmarks.checkpoints.random_weights import write_checkpoint
from benchmarks.lib.command import command
from engine.device.current import enter_device
from engine.model_config.shard import Shard
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.weight_files import weight_files
from engine.parallel.communicator import Communicator

_BLOCK: Final = 16 << 20


def drop(files: list[Path]) -> None:
    """From the page cache."""
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: list[Path], threads: int) -> None:
    blocks = [(file, start) for file in files for start in range(0, file.stat().st_size, _BLOCK)]

    def some(number: int) -> None:
        buffer = bytearray(_BLOCK)
        for file, start in blocks[number::threads]:
            with file.open("rb", buffering=0) as opened:
                os.preadv(opened.fileno(), [buffer], start)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(threads)))


class _Stages:
    """Seconds of each stage of a load. A `Progress`."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.began.setdefault(stage, time.perf_counter())

    def seconds(self, end: float) -> dict[str, float]:
        starts = [*self.began.values(), end]
        return {stage: starts[at + 1] - starts[at] for at, stage in enumerate(self.began)}


def load(folder: Path, device: str, dtype: str, shard: Shard) -> dict[str, float]:
    """Loads a rank's part and forgets it; seconds of each stage."""
    stages = _Stages()
    communicator = cast(Communicator, SimpleNamespace(shard=shard))  # nothing is computed
    model = load_model(folder, device=device, dtype=dtype, progress=stages, communicator=communicator)
    if device != "cpu":
        torch.cuda.synchronize()
    end = time.perf_counter()
    del model
    return stages.seconds(end)


def _start(device: str) -> None:
    if enter_device(device).type == "cuda":
        torch.zeros(1, device=device)


class Ranks:
    """Processes that load the parts of a model at the same time."""

    def __init__(self, device: str, size: int, stack: ExitStack) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._devices = [device if device == "cpu" else f"{device}:{rank}" for rank in range(size)]
        self._processes = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in self._devices]
        for started in [
            process.submit(_start, own) for process, own in zip(self._processes, self._devices, strict=True)
        ]:
            started.result()

    def load(self, folder: Path, dtype: str) -> dict[str, float]:
        """Seconds of each stage of the slowest rank."""
        loads = [
            process.submit(load, folder, device, dtype, Shard(rank, len(self._processes)))
            for rank, (process, device) in enumerate(zip(self._processes, self._devices, strict=True))
        ]
        return max((one.result() for one in loads), key=lambda stages: sum(stages.values()))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(options: argparse.Namespace, ranks: Ranks) -> None:
    files = weight_files(options.model)
    total = sum(file.stat().st_size for file in files)
    print(f"{total / 1e9:.2f} GB in {len(files)} files")
    for state, before in (("cold", drop), ("cached", lambda _: None)):
        fastest = float("inf")
        for threads in dict.fromkeys((1, options.threads)):
            before(files)
            took = seconds(lambda: read(files, threads))  # noqa: B023
            fastest = min(fastest, took)
            print(f"{state:7} read, {threads:2} threads {took:8.2f} s {total / took / 1e9:7.2f} GB/s")
        before(files)
        stages = ranks.load(options.model, options.dtype)
        took = sum(stages.values())
        rate = f"{total / took / 1e9:7.2f} GB/s"
        text = ", ".join(f"{stage.lower()} {part:.2f}" for stage, part in stages.items())
        print(f"{state:7} load             {took:8.2f} s {rate}  {took / fastest:.2f} x  ({text})")


def main() -> None:
    parser = command("micro.load_weights", __doc__)
    parser.add_argument("--config", type=Path, help="with --write: folder of a config.json")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write a checkpoint, and load it")
    parser.add_argument("--layers", type=int, help="with --write: in place of those of config.json")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=8, help="besides one thread")
    options = parser.parse_args()
    if options.write is not None:
        config = json.loads((options.config / "config.json").read_text())
        if options.layers is not None:
            config["num_hidden_layers"] = options.layers
        took = seconds(lambda: write_checkpoint(config, options.write, threads=options.threads))
        print(f"written in {took:.1f} s")
        options.model = options.write
    with ExitStack() as stack:
        measure(options, Ranks(options.device, options.tensor_parallel_size, stack))


if __name__ == "__main__":
    main()
