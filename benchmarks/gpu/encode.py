"""Milliseconds in which a vision model encodes one image, as it is served and as transformers has it.

    python -m benchmarks.gpu.encode --shape 7b
    python -m benchmarks.gpu.encode --model FOLDER --side 512

Weights are random. Measured on the clock, with the copy of the pixels and the launches, which take longer
than the kernels if other programs use the cores.
"""

from __future__ import annotations

import argparse
import base64
import time
from io import BytesIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import torch
from PIL import Image

from benchmarks.images import Pictures
from benchmarks.lib.command import command
from benchmarks.lib.vision_folder import SHAPES, write_vision_folder
from engine.core.media import MediaArray, MediaItem
from engine.media.tower import Tower
from engine.model_config.model_spec import ModelSpec
from router.api.media.processor import ImageProcessor

_DTYPES: Final = {"cpu": torch.float32, "cuda": torch.bfloat16}


def item_of(folder: Path, side: int) -> MediaItem:
    """A square image as the model's processor makes it."""
    (url,) = Pictures(side, 0).take(1)
    image = Image.open(BytesIO(base64.b64decode(url.partition(",")[2])))
    found = ImageProcessor(folder, {}).process(image).item
    arrays = [MediaArray(each.name, each.dtype, tuple(each.shape), each.data) for each in found.arrays]
    return MediaItem(found.digest, 0, found.length, tuple(found.grid), tuple(arrays))


def milliseconds(tower: Tower, item: MediaItem, device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(2 + repeats):
        begin = time.perf_counter()
        tower.rows(item)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times[2:])


def main() -> None:
    options = make_parser().parse_args()
    device = torch.device(options.device)
    with TemporaryDirectory() as scratch:
        folder = options.model or write_vision_folder(options.shape, Path(scratch))
        vision = ModelSpec.from_folder(folder).vision
        if vision is None:
            raise SystemExit(f"--model {folder}: it has no vision model that is served")
        item = item_of(folder, options.side)
        for name, plain in (("as served", False), ("as transformers has it", True)):
            dtype = _DTYPES[device.type]
            tower = Tower(folder, vision, device=device, dtype=dtype, dummy_seed=0, plain=plain)
            took = milliseconds(tower, item, device, options.repeats)
            print(f"{name}: {took:.1f} ms for {item.length} tokens")


def make_parser() -> argparse.ArgumentParser:
    parser = command("gpu.encode", __doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--shape", choices=SHAPES, help="Qwen2.5-VL of this size")
    which.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--side", type=int, default=1024, help="pixels along each side")
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=10)
    return parser


if __name__ == "__main__":
    main()
