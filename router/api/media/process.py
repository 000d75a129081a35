"""A program that decodes images and runs the checkpoint's image processor, within limits of time and memory.

`python -m router.api.media.process FOLDER SETTINGS` answers frames (see `common.limits.work`). A question is
the longest side in pixels or 0, a line break, and the image file; the answer, a line of JSON and the item as
protobuf. An empty question is about the processor itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch

from common.limits.work import serve
from router.api.media.decode import decoded
from router.api.media.errors import ImageError, ImageProcessorFailed
from router.api.media.processor import ImageProcessor

MAX_CPU_S: Final = 10
MAX_BYTES: Final = 1 << 30


class _Worker:
    def __init__(self, folder: Path, options: dict[str, Any], names: list[str]) -> None:
        self._wrong = ""
        try:
            self._processor = ImageProcessor(folder, options, names)
        except ImageProcessorFailed as error:
            self._wrong = str(error)

    def answer(self, question: bytes) -> bytes:
        if self._wrong:
            return _line(error=self._wrong)
        if not question:
            return self._processor.facts.as_json()
        side, _, file = question.partition(b"\n")
        try:
            found = self._processor.process(decoded(file, int(side) or None))
        except ImageError as error:
            return _line(error=str(error))
        except MemoryError:
            return _line(error=f"it needs more than {MAX_BYTES >> 20} MiB of memory")
        except (ValueError, ArithmeticError, IndexError) as error:  # such as of an extreme shape
            return _line(error=f"the model's processor does not take it: {str(error)[:200]}")
        keys = found.keys.tobytes()
        return _line(text=found.text, rows=found.rows, keys=len(keys)) + keys + found.item.SerializeToString()


def _line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def main() -> None:
    torch.set_num_threads(1)
    _, folder, settings = sys.argv
    serve(_Worker(Path(folder), *json.loads(settings)).answer, cpu_s=MAX_CPU_S, memory_bytes=MAX_BYTES)


if __name__ == "__main__":
    main()
