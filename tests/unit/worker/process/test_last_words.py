"""How a process ended, as its successor reports it; real processes end in real ways."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worker.process.last_words import LastWords

_PROCESS = """
import os, signal, sys, time
from pathlib import Path
from worker.process.last_words import LastWords
words = LastWords(Path(sys.argv[1]), Path(sys.argv[2]))
{end}
"""


@pytest.fixture
def vmstat(tmp_path: Path) -> Path:
    path = tmp_path / "vmstat"
    path.write_text("nr_free_pages 5\noom_kill 3\n")
    return path


def ended(tmp_path: Path, vmstat: Path, end: str) -> tuple[int, Path]:
    """Pid of a process that ended in this way, and its file."""
    file = tmp_path / "decode-0.end"
    command = [sys.executable, "-c", _PROCESS.format(end=end), file, vmstat]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    process.wait(30)
    return process.pid, file


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed, by SIGKILL, SIGTERM or Ray"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed: Segmentation fault"),
        ("os.abort()", "crashed: Aborted"),
        ("words.say('step took too long\\nstack'); os._exit(1)", "ended itself: step took too long"),
    ],
)
def test_the_successor_tells_how_its_predecessor_ended(
    tmp_path: Path, vmstat: Path, end: str, told: str
) -> None:
    pid, file = ended(tmp_path, vmstat, end)
    assert LastWords(file, vmstat).predecessor == f"pid {pid} {told}"


def test_a_kill_while_the_kernel_ran_out_of_memory_is_told_as_such(tmp_path: Path, vmstat: Path) -> None:
    _, file = ended(tmp_path, vmstat, f"os.kill(os.getpid(), {int(signal.SIGKILL)})")
    vmstat.write_text("oom_kill 4\n")
    assert "OOM killer" in LastWords(file, vmstat).predecessor


def test_the_first_process_on_a_node_has_no_predecessor(tmp_path: Path, vmstat: Path) -> None:
    assert LastWords(tmp_path / "none.end", vmstat).predecessor == ""


def test_a_disk_without_room_does_not_keep_a_process_from_starting(tmp_path: Path, vmstat: Path) -> None:
    words = LastWords(tmp_path / "missing" / "file.end", vmstat)
    words.say("it was stopped")
    assert words.predecessor == ""
