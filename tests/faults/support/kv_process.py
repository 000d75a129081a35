"""A KV sender or receiver in a process of its own, driven over a pipe, so that tests can kill or stop it."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import xxhash

from common.kv_groups import full_group
from kv_transfer import EndpointEvent, KVEndpoint, KVLayout, KVPort, Peer, Reopened, TransferThread
from kv_transfer.transports import Transport
from tests.faults.support.two_hosts import enter
from tests.kv_support import Pool
from tests.processes import starting

LAYOUT = KVLayout(
    model="big", dtype="float32", groups=full_group(8), num_kv_heads=4, head_dim=64, page_size=16
)
NUM_PAGES = 512  # of 256 KiB: large enough for a write to be caught half way


def make_transport(kind: str, name: str, pool: Pool, host: str = "127.0.0.1") -> Transport:
    if kind == "nixl":
        from kv_transfer.transports.nixl import NixlTransport

        return NixlTransport(name, pool.memory, host=host)
    from kv_transfer.transports.ucxx import UcxxTransport

    return UcxxTransport(name, pool.memory, host=host)


@dataclass(frozen=True, slots=True)
class Host:
    address: str = "127.0.0.1"
    namespace: str = ""
    """Empty: this machine itself."""


def _serve(
    role: str, kind: str, name: str, epoch: int, host: Host, environment: dict[str, str], pipe: Connection
) -> None:
    if host.namespace:
        enter(host.namespace)
    # When UCX ends a process, standard error shows where.
    os.environ.update({"UCX_HANDLE_ERRORS": "bt"} | environment)
    pool = Pool(NUM_PAGES, LAYOUT)
    transport = make_transport(kind, name, pool, host.address)
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    def emit(event: EndpointEvent | BaseException) -> None:
        if not isinstance(event, Reopened):
            send("event", event)

    port = KVPort(
        transport,
        pool.memory,
        LAYOUT,
        epoch,
        reopen=(lambda: make_transport(kind, f"{name}~", pool, host.address)) if kind == "nixl" else None,
    )
    thread = TransferThread(KVEndpoint(port, drain_timeout_s=1.0), emit, emit)
    half = thread.sender if role == "sender" else thread.receiver
    thread.start()
    send("peer", thread.peer)
    while True:
        command, args, kwargs = pipe.recv()
        if command == "fill":
            pool.fill(*args)
        elif command == "read":
            send("digests", [xxhash.xxh3_128_digest(pool.bytes[page]) for page in args[0]])
        else:
            getattr(thread if command == "fence" else half, command)(*args, **kwargs)


HERE = Host()


class Remote:
    """A handle on that process: `call` a command of its endpoint, wait for an event of it."""

    def __init__(
        self, role: str, kind: str, name: str, epoch: int, host: Host = HERE, **environment: str
    ) -> None:
        self.name = name
        context = starting()
        self._pipe, far_end = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(role, kind, name, epoch, host, environment, far_end), daemon=True
        )
        self.process.start()
        far_end.close()
        self._waiting: dict[str, list[Any]] = {}
        self.peer: Peer = self._take("peer", 60)

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def call(self, command: str, *args: object, **kwargs: object) -> None:
        self._pipe.send((command, args, kwargs))

    def event(self, timeout_s: float = 10.0) -> Any:
        """The next event. Raises TimeoutError; RuntimeError if the process ended by itself."""
        return self._take("event", timeout_s)

    def digests(self, pages: list[int]) -> list[bytes]:
        """Digest of what each of these pages holds now."""
        self.call("read", pages)
        found: list[bytes] = self._take("digests", 10)
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stop(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _take(self, kind: str, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while not self._waiting.get(kind):
            if not self._pipe.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"no {kind} within {timeout_s} s")
            try:
                got, value = self._pipe.recv()
            except EOFError:
                self.process.join()
                raise RuntimeError(f"{self.name} ended by itself, with {self.process.exitcode}") from None
            self._waiting.setdefault(got, []).append(value)
        return self._waiting[kind].pop(0)
