"""A Ray that no router has started: routers join it, and their workers outlive them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import ray

from router.cluster.local_ray import start_local_ray
from tests.e2e.router_process import ENDS_WITH_ITS_PARENT

__all__ = ["RunningRay", "running_ray"]

_STARTS_S = 60.0


class RunningRay:
    """Processes can join it at `address`. Its GCS ends and is started again as `deploy/start_ray` does it."""

    def __init__(self, address: str, processes: Sequence[psutil.Process]) -> None:
        self.address = address
        self._gcs = next(process for process in processes if process.name() == "gcs_server")
        port = f"--gcs_server_port={address.rpartition(':')[2]}"  # it had the choice at first
        command = self._gcs.cmdline()
        self._command = [port if word.startswith("--gcs_server_port=") else word for word in command]
        self._environment = self._gcs.environ()

    def kill_gcs(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._gcs.kill()

    def start_gcs(self) -> None:
        self._gcs = psutil.Popen([*ENDS_WITH_ITS_PARENT, *self._command], env=self._environment)


@contextmanager
def running_ray(num_cpus: int, state: Path | None = None) -> Iterator[RunningRay]:
    """The end of the block ends it.

    `state`: a folder that GCS keeps its state in; in its memory otherwise.
    """
    kept = {} if state is None else {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(state)}
    process = subprocess.Popen(
        [*ENDS_WITH_ITS_PARENT, sys.executable, "-m", __name__, str(num_cpus)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | kept,
    )
    assert process.stdout is not None
    stack = ExitStack()
    try:
        address = process.stdout.readline().strip()
        assert address, "Ray does not start"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("RAY_AUTH_MODE", "token")
            running = RunningRay(address, psutil.Process(process.pid).children(recursive=True))
            stack.callback(running.kill_gcs)
            yield running
    finally:
        process.terminate()
        process.wait(_STARTS_S)
        stack.close()


def _main() -> None:
    start_local_ray(num_cpus=int(sys.argv[1]), logging_level=logging.ERROR, log_to_driver=False)
    print(ray.get_runtime_context().gcs_address, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _main()
