"""Settings of the Ray cluster: where workers are placed, and what their processes are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from router.config.choices import NodePlacement
from router.config.option import Option

__all__ = ["ClusterSettings"]

_GROUP: Final = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    ray_address: Annotated[
        str | None,
        Option(_GROUP, "Ray cluster to join, as host:port or 'auto' (default: start a local one)", "ADDRESS"),
    ] = None
    cluster_name: Annotated[
        str,
        Option(
            _GROUP,
            "with --ray-address: name of the cluster of workers in Ray; they outlive the router, and routers"
            " of one name share them",
            "NAME",
        ),
    ] = "baton"
    worker_cpus: Annotated[
        int | None,
        Option(
            _GROUP,
            "CPU cores per rank (default: on --device cpu the machine's cores divided by the ranks)",
            "N",
            least=1,
        ),
    ] = None
    worker_network: Annotated[
        str | None,
        Option(
            _GROUP,
            "network on which workers listen (default: 127.0.0.1; on a Ray cluster, the address of the"
            " worker's node)",
            "CIDR",
        ),
    ] = None
    worker_ports: Annotated[
        str | None,
        Option(
            _GROUP,
            "ports that workers listen on: gRPC, metrics and lifelines in the lower half, UCX in the upper"
            " half (default: any free ones)",
            "LOW-HIGH",
        ),
    ] = None
    placement: Annotated[
        NodePlacement,
        Option(
            _GROUP,
            "nodes of workers; pack: as few as possible, for the fastest KV transfer; spread: as many as"
            " possible; strict-spread: one worker per node",
        ),
    ] = NodePlacement.PACK
    wait_for_nodes: Annotated[
        int | None,
        Option(
            _GROUP,
            "with --ray-address: place workers when the cluster has this many nodes, the head included"
            " (default: as soon as there is room)",
            "N",
            least=1,
        ),
    ] = None
    autoscale: Annotated[
        str | None,
        Option(
            _GROUP,
            "bounds between which the number of workers follows the load, such as 'decode=1:4 prefill=1:2'"
            " (default: fixed; `router scale` changes it). With 0 as the least, a request starts the first"
            " worker and waits --failover-timeout for it",
            "'ROLE=LEAST:MOST ...'",
        ),
    ] = None
    autoscale_cooldown: Annotated[
        float,
        Option(_GROUP, "--autoscale: end a worker when it was superfluous for this time", "SECONDS", above=0),
    ] = 300.0
    worker_env: Annotated[
        str | None,
        Option(
            _GROUP,
            "environment of workers, such as 'UCX_NET_DEVICES=mlx5_0:1 NCCL_DEBUG=INFO'; shell quoting",
            "'KEY=VALUE ...'",
        ),
    ] = None
    startup_timeout: Annotated[
        float, Option(_GROUP, "give up when not all workers are ready after this time", "SECONDS", above=0)
    ] = 900.0
