"""Settings of failover: retries, and the timeouts after which a worker is late, lost or restarted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from router.config.option import Option

__all__ = ["FailoverSettings"]

_GROUP: Final = "routing and failover"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    max_attempts: Annotated[
        int, Option(_GROUP, "largest number of attempts at a request whose worker fails", "N", least=1)
    ] = 3
    failover_timeout: Annotated[
        float, Option(_GROUP, "how long a request waits while no worker is ready", "SECONDS", above=0)
    ] = 60.0

    worker_timeout: Annotated[
        float,
        Option(
            _GROUP,
            "silence after which a worker is late: it is probed and gets no new requests (heartbeat: 0.2 s)",
            "SECONDS",
            above=0,
        ),
    ] = 1.0
    worker_grace: Annotated[
        float,
        Option(
            _GROUP,
            "time after --worker-timeout in which a late worker can answer the probe and keep its streams;"
            " after it the worker is lost",
            "SECONDS",
            least=0,
        ),
    ] = 3.0
    step_timeout: Annotated[
        float,
        Option(
            _GROUP,
            "restart a worker whose engine step takes longer than this",
            "SECONDS",
            above=0,
            aliases=("--watchdog-timeout",),
        ),
    ] = 300.0
    router_timeout: Annotated[
        float,
        Option(
            _GROUP,
            "seconds without a connection to any router after which a worker ends itself, if Ray does not"
            " answer it either; the router kills a worker that has not answered it for as long, if Ray"
            " reaches its node",
            "SECONDS",
            above=0,
        ),
    ] = 60.0
    probe_interval: Annotated[
        float,
        Option(
            _GROUP,
            "probe a worker that has been unused for this long with a request of two tokens",
            "SECONDS",
            above=0,
        ),
    ] = 15.0
    probe_timeout: Annotated[
        float,
        Option(
            _GROUP,
            "probe timeout; after two consecutive timeouts the worker is taken out of rotation",
            "SECONDS",
            above=0,
        ),
    ] = 30.0
