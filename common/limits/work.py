"""The inner side of `process`: answers questions on standard input within limits.

Questions and answers are frames: 8 bytes of length, little endian, and the content. Work that exceeds a
limit ends the process with a signal: SIGXCPU for CPU time, SIGABRT for memory. The process also ends with its
input, and so with the process that started it.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, Final

LENGTH_BYTES: Final = 8


def serve(answer: Callable[[bytes], bytes], *, cpu_s: int, memory_bytes: int) -> None:
    """Answer until the input ends. Call it once, after what the work needs is loaded.

    `cpu_s`: CPU time of one answer; the kernel counts whole seconds, so it may take up to one more.
    `memory_bytes`: for data, beyond what the process has now.
    """
    output = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # nothing that a library prints may get between the frames
    os.dup2(silence, 2)  # libraries print a stack when they lack memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _data_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    while (question := _read(sys.stdin.buffer)) is not None:
        spent = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + cpu_s, most))
        try:
            content = answer(question)
        except MemoryError:
            os.abort()
        output.write(len(content).to_bytes(LENGTH_BYTES, "little"))
        output.write(content)
        output.flush()


def _read(source: BinaryIO) -> bytes | None:
    length = source.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    content = source.read(int.from_bytes(length, "little"))
    return content if len(content) == int.from_bytes(length, "little") else None


def _data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
