"""A Ray that no router has started: routers join it, and their workers outlive them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import ray

from router.cluster.local_ray import start_local_ray
from tests.e2e.router_process import ENDS_WITH_ITS_PARENT

__all__ = ["running_ray"]

_STARTS_S = 60.0


@contextmanager
def running_ray(num_cpus: int) -> Iterator[str]:
    """Its address; processes that are started in the block can join it. The end of the block ends it."""
    process = subprocess.Popen(
        [*ENDS_WITH_ITS_PARENT, sys.executable, "-m", __name__, str(num_cpus)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "Ray does not start"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("RAY_AUTH_MODE", "token")
            yield address
    finally:
        process.terminate()
        process.wait(_STARTS_S)


def _main() -> None:
    start_local_ray(num_cpus=int(sys.argv[1]), logging_level=logging.ERROR, log_to_driver=False)
    print(ray.get_runtime_context().gcs_address, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _main()
