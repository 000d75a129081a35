"""Settings that work on this machine, but not as their user may expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from common.cpu_times import CpuTimes, usable_cores
from router.cluster.worker_config.machine import Machine
from router.config.settings import RouterConfig

_SMALL_CHUNK: Final = 128
"""Tokens below which the fixed costs of a step outweigh its chunk: docs/tuning.md."""
_CORES_USED: Final = 0.5
_LEAST_S: Final = 0.1
"""The operating system counts in units of 10 ms."""


def warnings_of(config: RouterConfig, machine: Machine) -> list[str]:
    return [*_graphs(config, machine), *_small_chunks(config), *_too_few_cores(config)]


def _too_few_cores(config: RouterConfig) -> Iterator[str]:
    asked, cores = config.cluster.worker_cpus, usable_cores()
    if config.cluster.ray_address is None and asked is not None and asked > cores:
        yield f"--worker-cpus {asked}: this machine has {cores}, and a worker computes with that many threads"


def busy_cores(before: CpuTimes | None, after: CpuTimes | None) -> Iterator[str]:
    """What other programs used of a CPU's cores between two observations, if it is worth a warning."""
    if before is None or after is None or after.at - before.at < _LEAST_S:
        return
    if (others := after.others_since(before)) > _CORES_USED:
        yield (
            f"other programs use {others:.1f} of {after.cores} cores: workers compute with fewer threads"
            " while that lasts, and are slower"
        )


def _graphs(config: RouterConfig, machine: Machine) -> Iterator[str]:
    if machine.device == "cuda":
        return
    for name in ("cuda_graph_max_bs", "cuda_graph_max_tokens"):
        for flag, size in config.everywhere(name):
            if size:
                device = config.device.value
                yield f"{flag} {size} has no effect: the workers run on the CPU (--device {device})"


def _small_chunks(config: RouterConfig) -> Iterator[str]:
    for flag, chunk in config.everywhere("chunked_prefill_size"):
        if 0 < chunk < _SMALL_CHUNK:
            yield _small(flag, chunk)
    threshold = config.scheduling.effective_threshold
    if isinstance(threshold, int) and threshold < _SMALL_CHUNK:
        yield _small("--long-prefill-token-threshold", threshold)


def _small(flag: str, tokens: int) -> str:
    return (
        f"{flag} {tokens}: below {_SMALL_CHUNK} tokens the fixed costs of a step outweigh its chunk, and on"
        f" GPUs throughput falls by half or more; use {_SMALL_CHUNK} or more"
    )
