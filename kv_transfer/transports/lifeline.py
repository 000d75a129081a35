"""Detects the end of a peer's process by its TCP connections, not by a timeout.

Each worker listens on a TCP port and sends its name to every connection; its peers keep one open. When the
process ends, for whatever reason, its kernel closes them at once; those of a stopped, busy or unreachable
process stay open. A closed connection alone is no proof: a firewall, load balancer or NAT may reset idle
connections. So the peer is dialled again, and is lost only if its host confirms it:

| result of the next dial | meaning |
| --- | --- |
| connection refused | no process listens on the port: the process has ended |
| another name | another process has the port: the process has ended |
| the same name | the process is alive; the network reset the connection |
| no answer, timeout, no route | unknown: dial again until there is a result, or `unwatch` |

A firewall that rejects connections of a live process cannot be told from its host: it must drop them instead.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from dataclasses import dataclass
from typing import Final

from common.ports import PortRange, bind_within

_REDIAL_S: Final = 0.05
_LONGEST_REDIAL_S: Final = 1.0
"""Minimum interval between two dials; doubles while they have no result. A lost connection is redialled at
once."""

_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A probe every 10 s keeps middleboxes from dropping the connection. Without answers it is closed after 30 s,
instead of two hours by the kernel's defaults; that does not count as the end of the peer."""
_SYN_RETRIES: Final = 3
"""A connection attempt without an answer fails after about 15 s."""


@dataclass(slots=True, eq=False)
class _Watch:
    name: str
    address: tuple[str, int]
    socket: socket.socket | None = None
    unread: bytes = b""
    """The part of the peer's name that has not been received yet."""
    dialled_at: float = 0.0
    redial_s: float = _REDIAL_S
    """Current minimum interval between two dials."""
    redial_at: float = 0.0


class Lifeline:
    """This worker's lifeline, and watches on those of peers. Never blocks; an idle poll is one syscall."""

    def __init__(self, name: str, host: str, ports: PortRange | None = None) -> None:
        """`host`: the address of this machine that peers use. `ports`: None for any free one.

        Raises ValueError if the host is a wildcard, and NoPortLeft.
        """
        if host in ("", "0.0.0.0", "::"):
            raise ValueError(f"{host} is not an address that peers can connect to; use one of this machine's")
        self._name = name.encode() + b"\n"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = bind_within(
            ports, lambda port: socket.create_server((host, port), family=family, backlog=1024)
        )
        self._listener.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener, select.EPOLLIN)
        self._watched: dict[str, _Watch] = {}
        self._by_fd: dict[int, _Watch] = {}
        self._accepted: dict[int, socket.socket] = {}
        self._dial_again: set[str] = set()
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])

    def watch(self, name: str, address: tuple[str, int]) -> None:
        """Watch a peer: `poll` reports the end of its process, once."""
        if name not in self._watched:
            self._watched[name] = _Watch(name, address)
            self._dial_again.add(name)

    def unwatch(self, name: str) -> None:
        """Stop watching a peer."""
        watch = self._watched.pop(name, None)
        if watch is not None:
            self._hang_up(watch)

    def poll(self, now: float) -> list[str]:
        """Watched peers whose process has ended since the last call. `now`: seconds, monotonic."""
        gone: list[str] = []
        for fd, _ in self._poller.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._accepted:
                self._drop_if_closed(fd)
            elif self._has_ended(self._by_fd[fd], now):
                gone.append(self._by_fd[fd].name)
        for name in [n for n in self._dial_again if now >= self._watched[n].redial_at]:
            self._dial_again.discard(name)
            if not self._dial(self._watched[name], now):
                gone.append(name)
        for name in gone:
            self._hang_up(self._watched.pop(name))
        return gone

    def close(self) -> None:
        """Close all connections, which tells peers that this worker has ended."""
        for watch in self._watched.values():
            self._hang_up(watch)
        self._watched.clear()
        self._listener.close()  # first: peers whose connection ends reconnect, and must be refused
        for accepted in self._accepted.values():
            accepted.close()
        self._accepted.clear()
        self._poller.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                _keep_alive(accepted)
                accepted.send(self._name)  # fits any fresh socket's buffer
                self._accepted[accepted.fileno()] = accepted
                self._poller.register(accepted, select.EPOLLIN | select.EPOLLRDHUP)

    def _drop_if_closed(self, fd: int) -> None:
        try:
            if self._accepted[fd].recv(4096):
                return  # peers send nothing on this connection; ignore
        except BlockingIOError:
            return
        except OSError:
            pass
        self._poller.unregister(fd)
        self._accepted.pop(fd).close()

    def _dial(self, watch: _Watch, now: float) -> bool:
        """False: the peer's process has ended."""
        family = socket.AF_INET6 if ":" in watch.address[0] else socket.AF_INET
        watch.socket = socket.socket(family, socket.SOCK_STREAM)
        watch.socket.setblocking(False)
        _keep_alive(watch.socket)
        watch.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_RETRIES)
        watch.unread, watch.dialled_at = watch.name.encode() + b"\n", now
        code = watch.socket.connect_ex(watch.address)
        if code == errno.ECONNREFUSED:
            return False
        if code not in (0, errno.EINPROGRESS):
            self._redial(watch, now)
            return True
        self._by_fd[watch.socket.fileno()] = watch
        self._poller.register(watch.socket, select.EPOLLIN | select.EPOLLRDHUP)
        return True

    def _has_ended(self, watch: _Watch, now: float) -> bool:
        """Whether the data or error on the connection proves the end of the peer's process."""
        assert watch.socket is not None
        try:
            received = watch.socket.recv(4096)
        except BlockingIOError:
            return False
        except ConnectionRefusedError:
            return True  # result of the dial: the host has no such listener
        except OSError:
            received = b""
        if not received:
            self._redial(watch, now)  # closed or reset, by the host or by the network
            return False
        if not watch.unread.startswith(received):
            return True  # another process has the port
        watch.unread = watch.unread[len(received) :]
        if not watch.unread:
            watch.redial_s = _REDIAL_S
        return False

    def _redial(self, watch: _Watch, now: float) -> None:
        self._hang_up(watch)
        watch.redial_at = max(now, watch.dialled_at + watch.redial_s)
        watch.redial_s = min(2 * watch.redial_s, _LONGEST_REDIAL_S)
        self._dial_again.add(watch.name)

    def _hang_up(self, watch: _Watch) -> None:
        self._dial_again.discard(watch.name)
        if watch.socket is not None:
            if self._by_fd.pop(watch.socket.fileno(), None) is not None:
                self._poller.unregister(watch.socket)
            watch.socket.close()
            watch.socket = None


def _keep_alive(connection: socket.socket) -> None:
    for level, option, value in _OPTIONS:
        connection.setsockopt(level, option, value)
