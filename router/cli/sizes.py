"""The settings that workers report, for the router's output at start."""

from __future__ import annotations

from collections.abc import Iterable

from rpc.baton.v1 import worker_pb2

__all__ = ["sizes"]


def sizes(workers: Iterable[worker_pb2.WorkerInfo]) -> list[str]:
    """One line per group of workers with equal settings."""
    groups: dict[str, list[str]] = {}
    for info in workers:
        groups.setdefault(info.settings, []).append(info.worker_id)
    return [f"{_names(names)}: {text}" for text, names in groups.items()]


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
