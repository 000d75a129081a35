"""What the routers of one cluster share: a few values in the key-value store of Ray's GCS.

Whoever can read them holds Ray's token, and can run code as this user anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from router.cluster.fleet import WantedWorkers, in_order, role_of
from router.dispatch.workers.fencing import Incarnation
from rpc.tls import Identity
from worker.config import WorkerRole

_ANSWER_S: Final = 5.0
_IDENTITY: Final = b"identity"
_GROUP: Final = b"placement group"
_MEMORY: Final = b"memory/"
_INCARNATION: Final = b"incarnation/"
_STOPPED: Final = b"stopped/"
_WANTED: Final = b"workers/"
_POISON: Final = b"poison/"
_OPEN: Final = b"open circuits/"
_KEPT_REVISIONS: Final = 64
"""Kept revisions of what routers agree on. A router that has missed as many reads before it writes."""


class Agreed(Enum):
    """What routers agree on: the beginning of its keys."""

    ADAPTERS = b"adapter"
    WEIGHTS = b"weights"


@dataclass(frozen=True, slots=True)
class FirstGroup:
    """The placement group of the workers that were placed together, when there were none."""

    name: str
    shape: str
    """Shape of the places of all workers, later ones included."""
    worker_ids: tuple[str, ...]
    """In the order of its bundles."""


@dataclass(frozen=True, slots=True)
class PoisonEntry:
    """A request that crashed workers."""

    key: bytes
    """Its fingerprint."""
    sequence_id: str
    until: float
    """Wall clock, in seconds."""


@dataclass(frozen=True, slots=True)
class OpenCircuits:
    """The processes of workers that failed the probes of a router."""

    router: str
    at: float
    """Wall clock, in seconds."""
    workers: tuple[tuple[str, int], ...]
    """Worker ids with the epochs of their processes."""


class KeyValueStore(Protocol):
    """The part of `ray._raylet.GcsClient` that is used here. Raises what Ray raises."""

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: bytes, timeout: float
    ) -> int:
        """The number of added keys: 0 if there was one."""
        ...

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None: ...

    def internal_kv_keys(self, prefix: bytes, namespace: bytes, timeout: float) -> list[bytes]: ...

    def internal_kv_del(self, key: bytes, del_by_prefix: bool, namespace: bytes, timeout: float) -> int: ...


class ClusterRecord:
    """Values that outlive every router, and end with Ray. All methods block, for at most 5 s each."""

    def __init__(self, store: KeyValueStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace.encode()

    def identity(self) -> Identity:
        """The key and certificate by which routers of this cluster authenticate to its workers.

        The first router generates them.
        """
        return Identity.from_pem(self._first(_IDENTITY, Identity.generate().pem))

    def memory(self, device: str) -> int | None:
        """What was measured for the workers that there are; None if nothing was."""
        value = self._get(_MEMORY + device.encode())
        return None if value is None else int(value)

    def keep_memory(self, device: str, num_bytes: int) -> None:
        self._put(_MEMORY + device.encode(), str(num_bytes).encode())

    @property
    def group(self) -> FirstGroup | None:
        """None before the first workers."""
        value = self._get(_GROUP)
        return None if value is None else _group(value)

    def first_group(self, group: FirstGroup) -> FirstGroup:
        """The one that there is, which is `group` if there was none."""
        return _group(self._first(_GROUP, _bytes(group)))

    def keep_group(self, group: FirstGroup) -> None:
        self._put(_GROUP, _bytes(group))

    def wanted(self, role: WorkerRole) -> WantedWorkers | None:
        """The workers that the cluster is to have; None before the first."""
        value = self._get(_WANTED + role.value.encode())
        return None if value is None else WantedWorkers.from_json(value)

    def first_wanted(self, role: WorkerRole, workers: WantedWorkers) -> WantedWorkers:
        """The recorded workers; records `workers` if there are none."""
        return WantedWorkers.from_json(self._first(_WANTED + role.value.encode(), workers.to_json()))

    def keep_wanted(self, role: WorkerRole, workers: WantedWorkers) -> None:
        self._put(_WANTED + role.value.encode(), workers.to_json())

    def agree(
        self, counts: Mapping[WorkerRole, int], there: Iterable[str], worth: Callable[[str], Any]
    ) -> Sequence[str]:
        """Names of the wanted workers, and of those that exist (`there`).

        Their number is what routers have agreed on, unless the settings (`counts`) have changed since.
        `worth`: see `WantedWorkers.resized`.
        """
        names = set(there)
        for role, number in counts.items():
            wanted = self.first_wanted(role, WantedWorkers.first(role, number))
            if wanted.configured != number:
                wanted = wanted.resized(role, number, worth).configured_as(number)
                self.keep_wanted(role, wanted)
            names.update(wanted.worker_ids)
        if not names:  # scaled to zero: a router learns from a worker what it can serve
            one = WantedWorkers.first(WorkerRole.DECODE, 1).configured_as(counts[WorkerRole.DECODE])
            self.keep_wanted(WorkerRole.DECODE, one)
            names.update(one.worker_ids)
        return in_order(names)

    def forget_workers(self) -> None:
        """Which workers the cluster is to have, and which of them were drained."""
        for prefix in (_WANTED, _STOPPED):
            self._store.internal_kv_del(prefix, True, self._namespace, _ANSWER_S)

    def is_wanted(self, worker_id: str) -> bool:
        """Whether the cluster is to have this worker."""
        wanted = self.wanted(role_of(worker_id))
        return wanted is None or worker_id in wanted.worker_ids

    def is_stopped(self, worker_id: str) -> bool:
        """Whether an operator has drained the worker, through any router."""
        return self._get(_STOPPED + worker_id.encode()) is not None

    def keep_stopped(self, worker_id: str, stopped: bool) -> None:
        key = _STOPPED + worker_id.encode()
        if stopped:
            self._put(key, b"1")
        else:
            self._store.internal_kv_del(key, False, self._namespace, _ANSWER_S)

    def keep_poison(self, entry: PoisonEntry) -> None:
        self._put(_poison_key(entry), json.dumps([entry.sequence_id, entry.until]).encode())

    def forget_poison(self, entry: PoisonEntry) -> None:
        self._store.internal_kv_del(_poison_key(entry), False, self._namespace, _ANSWER_S)

    def poison(self) -> list[PoisonEntry]:
        """Entries of all routers, ended ones included."""
        keys = self._store.internal_kv_keys(_POISON, self._namespace, _ANSWER_S)
        found = ((key, self._get(key)) for key in keys)
        return [
            PoisonEntry(bytes.fromhex(key.removeprefix(_POISON).decode()), *json.loads(value))
            for key, value in found
            if value is not None  # removed meanwhile
        ]

    def keep_open_circuits(self, circuits: OpenCircuits) -> None:
        """In place of the router's earlier ones."""
        if circuits.workers:
            value = json.dumps([circuits.at, circuits.workers]).encode()
            self._put(_OPEN + circuits.router.encode(), value)
        else:
            self.forget_open_circuits(circuits.router)

    def forget_open_circuits(self, router: str) -> None:
        self._store.internal_kv_del(_OPEN + router.encode(), False, self._namespace, _ANSWER_S)

    def open_circuits(self) -> list[OpenCircuits]:
        """Open circuits of all routers, ended ones included."""
        keys = self._store.internal_kv_keys(_OPEN, self._namespace, _ANSWER_S)
        found = []
        for key in keys:
            if (value := self._get(key)) is not None:  # not removed meanwhile
                at, workers = json.loads(value)
                named = tuple((worker_id, epoch) for worker_id, epoch in workers)
                found.append(OpenCircuits(key.removeprefix(_OPEN).decode(), at, named))
        return found

    def agreed(self, kind: Agreed, since: int) -> tuple[int, bytes] | None:
        """Latest revision of what routers agree on; None: there is none after `since`."""
        while (revision := max(self._revisions(kind), default=0)) > since:
            if (value := self._get(_revision_key(kind, revision))) is not None:  # not removed meanwhile
                return revision, value
        return None

    def keep_agreed(self, kind: Agreed, revision: int, value: bytes) -> bool:
        """False if there is this revision already, or if the one before it is not known any more."""
        before = revision - 1
        if before and self._get(_revision_key(kind, before)) is None:
            return False
        key = _revision_key(kind, revision)
        if not self._store.internal_kv_put(key, value, False, self._namespace, _ANSWER_S):
            return False
        for old in self._revisions(kind):
            if old <= revision - _KEPT_REVISIONS:
                self._store.internal_kv_del(_revision_key(kind, old), False, self._namespace, _ANSWER_S)
        return True

    def _revisions(self, kind: Agreed) -> list[int]:
        prefix = _revisions_of(kind)
        keys = self._store.internal_kv_keys(prefix, self._namespace, _ANSWER_S)
        return [int(key.removeprefix(prefix)) for key in keys]

    def views(self, kind: Agreed) -> dict[str, bytes]:
        """Views by router, also of routers that have ended."""
        prefix = _views_of(kind)
        keys = self._store.internal_kv_keys(prefix, self._namespace, _ANSWER_S)
        found = {key.removeprefix(prefix).decode(): self._get(key) for key in keys}
        return {router: value for router, value in found.items() if value is not None}

    def keep_view(self, kind: Agreed, router: str, value: bytes) -> None:
        self._put(_views_of(kind) + router.encode(), value)

    def forget_view(self, kind: Agreed, router: str) -> None:
        key = _views_of(kind) + router.encode()
        self._store.internal_kv_del(key, False, self._namespace, _ANSWER_S)

    def keep_incarnation(self, incarnation: Incarnation) -> None:
        """The last one of its worker that a router was connected to."""
        value = json.dumps([incarnation.epoch, incarnation.node]).encode()
        self._put(_INCARNATION + incarnation.worker_id.encode(), value)

    def incarnations(self, worker_ids: Iterable[str]) -> list[Incarnation]:
        """Recorded incarnations of these workers."""
        kept = ((worker_id, self._get(_INCARNATION + worker_id.encode())) for worker_id in worker_ids)
        return [Incarnation(worker_id, *json.loads(value)) for worker_id, value in kept if value is not None]

    def clear(self) -> None:
        """Forget everything: the workers have ended."""
        self._store.internal_kv_del(b"", True, self._namespace, _ANSWER_S)

    def _first(self, key: bytes, value: bytes) -> bytes:
        """The value of the first caller, whichever router that is."""
        self._store.internal_kv_put(key, value, False, self._namespace, _ANSWER_S)
        first = self._get(key)
        assert first is not None, "put above, and removed only with all workers"
        return first

    def _get(self, key: bytes) -> bytes | None:
        return self._store.internal_kv_get(key, self._namespace, _ANSWER_S)

    def _put(self, key: bytes, value: bytes) -> None:
        self._store.internal_kv_put(key, value, True, self._namespace, _ANSWER_S)


def _revisions_of(kind: Agreed) -> bytes:
    return kind.value + b" revisions/"


def _views_of(kind: Agreed) -> bytes:
    return kind.value + b" view/"


def _revision_key(kind: Agreed, revision: int) -> bytes:
    return b"%b%d" % (_revisions_of(kind), revision)


def _poison_key(entry: PoisonEntry) -> bytes:
    return _POISON + entry.key.hex().encode()


def _bytes(group: FirstGroup) -> bytes:
    return json.dumps([group.name, group.shape, group.worker_ids]).encode()


def _group(value: bytes) -> FirstGroup:
    name, shape, worker_ids = json.loads(value)
    return FirstGroup(name, shape, tuple(worker_ids))
