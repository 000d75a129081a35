"""Looks up a running or finished request for `router explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from router.api.generation.generation import Generation
from router.api.generation.history import History
from router.dispatch.request_status import RequestStatus
from router.dispatch.sequence import RequestIdentity
from rpc.baton.v1 import router_pb2

RUNNING = "running"
"""Outcome of a request that has none yet."""

Statuses: TypeAlias = Callable[[RequestIdentity], Mapping[int, tuple[RequestStatus, router_pb2.Timings]]]
"""See `ClusterDispatcher.statuses`."""


class Explanation:
    def __init__(self, generation: Generation, history: History, statuses: Statuses) -> None:
        self._generation = generation
        self._history = history
        self._statuses = statuses

    def find(self, request_id: str) -> dict[str, Any] | None:
        """None for a request that was not there, or was forgotten. O(running requests).

        `now` of a completion says where it is, while it is not finished.
        """
        run = self._generation.running(request_id)
        if run is None:
            return self._history.find(request_id)
        record = run.record(RUNNING)
        statuses = {} if run.identity is None else self._statuses(run.identity)
        for index, (_, timings) in statuses.items():
            record.completions[index].timings = timings
        found = record.as_json()
        for index, (status, _) in statuses.items():
            found["completions"][index]["now"] = status.as_json()
        return found
