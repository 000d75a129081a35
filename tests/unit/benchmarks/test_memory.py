"""Peak memory of a process tree, for processes whose use is known."""

from __future__ import annotations

import subprocess
import sys

import psutil

from benchmarks.lib.process_tree import PeakMemory, tree_memory

MIB = 2**20
HOLDS_100_MIB = "memory = bytearray(b'x') * (100 << 20); print(flush=True); input()"


def test_the_peak_counts_a_process_and_its_children() -> None:
    parent = (
        "import subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLDS_100_MIB!r}], stdin=0, stdout=1);"
        "child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tree:
        assert tree.stdout
        tree.stdout.readline()
        with PeakMemory(tree.pid) as memory:
            pass
        tree.communicate(b"\n")
    assert 100 * MIB < memory.peak_bytes < 200 * MIB


def test_a_tree_that_is_gone_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    root = psutil.Process(process.pid)
    process.wait()
    assert tree_memory(root) == 0
