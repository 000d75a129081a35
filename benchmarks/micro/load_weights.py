"""Time to load a checkpoint beside the time to read its files, from the disk and from the page cache.

python -m benchmarks.micro.load_weights --config FOLDER --write /tmp/checkpoint
python -m benchmarks.micro.load_weights --model /tmp/checkpoint --device cuda

--write makes the checkpoint: FP8 with a scale per output feature (compressed-tensors), random values, in the
shape of the config.json in FOLDER, for models with the tensors of Llama. Reading is by blocks of 16 MiB on
--threads threads into memory that is not kept. Files leave the page cache before each cold figure, on file
systems that follow posix_fadvise; "GB/s" says whether they did.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.checkpoints.quantize import quantization_config
from benchmarks.lib.command import command
from engine.loader.model_loader import load_model
from engine.loader.safetensors_reader import weight_files

_BLOCK: Final = 16 << 20
_FILE_BYTES: Final = 1 << 30
_FP8: Final = torch.float8_e4m3fn


def write_checkpoint(source: Path, folder: Path) -> None:
    """Random weights in files of a gibibyte."""
    config = json.loads((source / "config.json").read_text())
    folder.mkdir(parents=True)
    more = {"quantization_config": quantization_config("fp8", 0, symmetric=True)}
    (folder / "config.json").write_text(json.dumps(config | more))
    places: dict[str, str] = {}
    held: dict[str, Tensor] = {}
    for name, tensor in _tensors(config):
        held[name] = tensor
        if sum(one.nbytes for one in held.values()) >= _FILE_BYTES:
            _write(folder, held, places)
    _write(folder, held, places)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _write(folder: Path, held: dict[str, Tensor], places: dict[str, str]) -> None:
    file = f"model-{len(set(places.values())):05}.safetensors"
    save_file(held, folder / file)
    places |= dict.fromkeys(held, file)
    held.clear()


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    hidden, inner, heads = (
        config[f"{name}"] for name in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    dim = config.get("head_dim") or hidden // heads
    wide, narrow = heads * dim, config["num_key_value_heads"] * dim
    noise = torch.randint(0, 120, (64 << 20,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    shapes = {
        "self_attn.q_proj": (wide, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }

    def filled(*shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return noise.repeat(-(-count // len(noise)))[:count].view(shape)

    embeddings = config["vocab_size"], hidden
    yield "model.embed_tokens.weight", filled(*embeddings).bfloat16().div_(1000)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", filled(*shape).view(_FP8)
            yield f"model.layers.{layer}.{name}.weight_scale", torch.full((shape[0], 1), 1e-4)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", torch.ones(hidden, dtype=torch.bfloat16)
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", filled(*embeddings).bfloat16().div_(1000)


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


def load(folder: Path, device: str, dtype: str) -> str:
    """Loads and forgets; how long each stage took."""
    stages = _Stages()
    model = load_model(folder, device=device, dtype=dtype, progress=stages)
    if device != "cpu":
        torch.cuda.synchronize()
    text = ", ".join(
        f"{stage.lower()} {took:.2f}" for stage, took in stages.seconds(time.perf_counter()).items()
    )
    del model
    return text


def _timed(work: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(options: argparse.Namespace) -> None:
    files = weight_files(options.model)
    total = sum(file.stat().st_size for file in files)
    if options.device != "cpu":
        load(options.model, options.device, options.dtype)  # the device's own start
    print(f"{total / 1e9:.2f} GB in {len(files)} files")
    for state, before in (("cold", drop), ("cached", lambda _: None)):
        fastest = float("inf")
        for threads in dict.fromkeys((1, options.threads)):
            before(files)
            took, _ = _timed(lambda: read(files, threads))  # noqa: B023
            fastest = min(fastest, took)
            print(f"{state:7} read, {threads:2} threads {took:8.2f} s {total / took / 1e9:7.2f} GB/s")
        before(files)
        took, stages = _timed(lambda: load(options.model, options.device, options.dtype))
        rate = f"{total / took / 1e9:7.2f} GB/s"
        print(f"{state:7} load             {took:8.2f} s {rate}  {took / fastest:.2f} x  ({stages})")


def main() -> None:
    parser = command("micro.load_weights", __doc__)
    parser.add_argument("--config", type=Path, help="with --write: folder of a config.json")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write a checkpoint, and load it")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=8, help="besides one thread")
    options = parser.parse_args()
    if options.write is not None:
        write_checkpoint(options.config, options.write)
        options.model = options.write
    measure(options)


if __name__ == "__main__":
    main()
