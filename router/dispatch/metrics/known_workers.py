"""Which workers there are, and which of them the router can use."""

from __future__ import annotations

from collections.abc import Callable

from router.dispatch.metrics.instruments import Instruments


class KnownWorkers:
    def __init__(self, new: Instruments) -> None:
        self._workers: dict[str, tuple[str, bool]] = {}
        """Role and state by worker."""
        self._up = new.gauge("baton_worker_up", "1 while the router can use the worker", "role", "worker")
        self._desired = new.gauge(
            "baton_desired_workers", "Workers of the role that the cluster is to have", "role"
        )
        self._ready = new.gauge("baton_ready_workers", "Of those, the ones that the router can use", "role")
        self._incarnations = new.counter(
            "baton_worker_connects", "Connections to the worker", "role", "worker"
        )

    def changed(self, worker_id: str, role: str, *, up: bool) -> None:
        """A worker connects, is lost, or gets another role."""
        before, was_up = self._workers.get(worker_id, (role, False))
        self._workers[worker_id] = role, up
        if before != role:
            self._up.remove(before, worker_id)
        self._up.labels(role, worker_id).set(up)
        if up and not was_up:
            self._incarnations.labels(role, worker_id).inc()

    def gone(self, worker_id: str) -> None:
        """A worker has left the cluster for good."""
        if (known := self._workers.pop(worker_id, None)) is not None:
            self._up.remove(known[0], worker_id)

    def watch(self, role: str, desired: Callable[[], int], ready: Callable[[], int]) -> None:
        """Read the numbers of workers of a role at every scrape."""
        self._desired.labels(role).set_function(desired)
        self._ready.labels(role).set_function(ready)
