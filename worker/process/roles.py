"""The Ray actors of all roles: `ray.remote(ACTORS[role]).options(...).remote(config)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from decode_worker.role import DecodeWorker
from encode_worker.role import EncodeWorker
from prefill_worker.role import PrefillWorker
from worker.config import WorkerRole
from worker.process.actor import WorkerActor


def _actor(role: type) -> type[WorkerActor]:
    """Its name is that of the role: Ray gives it to the process, and writes it before forwarded log lines."""
    return type(role.__name__, (role, WorkerActor), {"__doc__": role.__doc__})


ACTORS: Final[Mapping[WorkerRole, type[WorkerActor]]] = {
    WorkerRole.PREFILL: _actor(PrefillWorker),
    WorkerRole.DECODE: _actor(DecodeWorker),
    WorkerRole.ENCODE: _actor(EncodeWorker),
}
