"""Settings of failover: retries, and the timeouts after which a worker is late, lost or restarted."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.option import Heading

__all__ = ["FailoverSettings"]

_group = Heading("routing and failover")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    max_attempts: int = _group(3, "largest number of attempts at a request whose worker fails", "N", least=1)
    failover_timeout: float = _group(
        60.0, "how long a request waits while no worker is ready", "SECONDS", above=0
    )

    worker_timeout: float = _group(
        1.0,
        "silence after which a worker is late: it is probed and gets no new requests (heartbeat: 0.2 s)",
        "SECONDS",
        above=0,
    )
    worker_grace: float = _group(
        3.0,
        "time after --worker-timeout in which a late worker can answer the probe and keep its streams;"
        " after it the worker is lost",
        "SECONDS",
        least=0,
    )
    step_timeout: float = _group(
        300.0,
        "restart a worker whose engine step takes longer than this",
        "SECONDS",
        above=0,
        aliases=("--watchdog-timeout",),
    )
    router_timeout: float = _group(
        60.0,
        "seconds without a connection to any router after which a worker ends itself, if Ray does not"
        " answer it either; the router kills a worker that has not answered it for as long, if Ray"
        " reaches its node",
        "SECONDS",
        above=0,
    )
    probe_interval: float = _group(
        15.0,
        "probe a worker that has been unused for this long with a request of two tokens",
        "SECONDS",
        above=0,
    )
    probe_timeout: float = _group(
        30.0,
        "probe timeout; after two consecutive timeouts the worker is taken out of rotation",
        "SECONDS",
        above=0,
    )
