"""A peer is gone when its host says so, and not when something between the two cuts a connection."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kv_transfer.transports.lifeline import Lifeline

HOST = "127.0.0.1"
PATIENCE_S = 5.0
ESTABLISHED, KEEPALIVE_TIMER = "01", "02"


class Middlebox:
    """Passes connections on, and ends them when it is told to, though both ends live."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.passed_on = 0
        """Connections so far."""
        self._listener = socket.create_server((HOST, 0))
        self.address: tuple[str, int] = (HOST, self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self, *, reset: bool) -> None:
        """Ends every connection towards the client, by RST or by FIN; new ones are passed on as before."""
        with self._lock:
            for pair in list(self._pairs):
                if reset:
                    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._end(pair)

    def close(self) -> None:
        """From now on its address refuses connections, as that of a process that ended."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._listener.close()
            self.cut(reset=True)

    def _run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.01):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._pass_on()
                    elif key.data in self._pairs:
                        self._pump(key.data)

    def _pass_on(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self.target)
        pair = client, server
        self._pairs.append(pair)
        self._selector.register(server, selectors.EVENT_READ, pair)
        self.passed_on += 1

    def _pump(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        data = server.recv(4096)
        if data:
            client.sendall(data)
        else:
            self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._selector.unregister(pair[1])
        self._pairs.remove(pair)
        for end in pair:
            end.close()


@pytest.fixture
def peer() -> Iterator[Lifeline]:
    with contextlib.closing(Lifeline("p-1", HOST)) as lifeline:
        yield lifeline


@pytest.fixture
def watcher() -> Iterator[Lifeline]:
    with contextlib.closing(Lifeline("d-1", HOST)) as lifeline:
        yield lifeline


@pytest.fixture
def middlebox(peer: Lifeline) -> Iterator[Middlebox]:
    with contextlib.closing(Middlebox(peer.address)) as box:
        yield box


def poll(*lifelines: Lifeline, until: Callable[[], bool]) -> list[str]:
    """What all of them reported until something holds."""
    gone: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        for lifeline in lifelines:
            gone += lifeline.poll(time.monotonic())
    return gone


def report(watcher: Lifeline, *others: Lifeline) -> list[str]:
    """The first peers that `watcher` finds gone."""
    gone: list[str] = []

    def found() -> bool:
        gone.extend(watcher.poll(time.monotonic()))
        return bool(gone)

    poll(*others, until=found)
    return gone


def timers(port: int) -> list[tuple[str, float]]:
    """Kind and seconds left of the timers of connections to and from a local port."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = line.split()
        if state == ESTABLISHED and f"{port:04X}" in (local.partition(":")[2], remote.partition(":")[2]):
            kind, _, ticks = timer.partition(":")
            found.append((kind, int(ticks, 16) / 100))
    return found


def test_a_process_that_ends_is_reported_once(peer: Lifeline, watcher: Lifeline) -> None:
    watcher.watch("p-1", peer.address)
    assert poll(watcher, peer, until=lambda: len(timers(peer.address[1])) == 2) == []
    peer.close()
    assert report(watcher) == ["p-1"]
    assert watcher.poll(time.monotonic() + 100.0) == []


@pytest.mark.parametrize("reset", [True, False])
def test_a_connection_that_a_middlebox_cuts_is_not_the_end_of_the_process(
    peer: Lifeline, watcher: Lifeline, middlebox: Middlebox, reset: bool
) -> None:
    watcher.watch("p-1", middlebox.address)
    gone = poll(watcher, peer, until=lambda: middlebox.passed_on == 1)
    for cuts in (1, 2, 3):
        middlebox.cut(reset=reset)
        gone += poll(watcher, peer, until=lambda cuts=cuts: middlebox.passed_on == cuts + 1)
    assert gone == []
    middlebox.close()
    assert report(watcher, peer) == ["p-1"]


def test_another_process_at_the_address_means_that_the_peer_has_ended(
    peer: Lifeline, watcher: Lifeline, middlebox: Middlebox
) -> None:
    watcher.watch("p-1", middlebox.address)
    poll(watcher, peer, until=lambda: middlebox.passed_on == 1)
    with contextlib.closing(Lifeline("p-2", HOST)) as successor:
        middlebox.target = successor.address
        middlebox.cut(reset=True)
        assert report(watcher, peer, successor) == ["p-1"]


def test_a_peer_that_accepts_and_sends_nothing_is_not_lost(watcher: Lifeline) -> None:
    with socket.create_server((HOST, 0)) as stopped:
        watcher.watch("p-1", stopped.getsockname())
        watcher.poll(0.0)
        connection, _ = stopped.accept()
        with connection:
            assert [watcher.poll(now) for now in (1.0, 1000.0)] == [[], []]


def test_an_unwatched_peer_is_not_reported(peer: Lifeline, watcher: Lifeline) -> None:
    watcher.watch("p-1", peer.address)
    poll(watcher, peer, until=lambda: len(timers(peer.address[1])) == 2)
    watcher.unwatch("p-1")
    watcher.unwatch("p-1")
    peer.close()
    assert [watcher.poll(now) for now in (1.0, 1000.0)] == [[], []]


def test_both_ends_probe_an_idle_connection_within_seconds(peer: Lifeline, watcher: Lifeline) -> None:
    """Or a middlebox forgets it, and a host without power is never noticed."""
    watcher.watch("p-1", peer.address)
    port = peer.address[1]
    poll(
        watcher, peer, until=lambda: [kind for kind, _ in timers(port)] == [KEEPALIVE_TIMER, KEEPALIVE_TIMER]
    )
    assert all(left <= 10.0 for _, left in timers(port))
