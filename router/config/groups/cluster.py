"""Settings of the Ray cluster: where workers are placed, and what their processes are given."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.choices import NodePlacement
from router.config.option import Heading

__all__ = ["ClusterSettings"]

_group = Heading("workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    ray_address: str | None = _group(
        None, "Ray cluster to join, as host:port or 'auto' (default: start a local one)", "ADDRESS"
    )
    cluster_name: str = _group(
        "baton",
        "with --ray-address: name of the cluster of workers in Ray; they outlive the router, and routers"
        " of one name share them",
        "NAME",
    )
    worker_cpus: int | None = _group(
        None,
        "CPU cores per rank (default: on --device cpu the machine's cores divided by the ranks)",
        "N",
        least=1,
    )
    worker_network: str | None = _group(
        None,
        "network on which workers listen (default: 127.0.0.1; on a Ray cluster, the address of the"
        " worker's node)",
        "CIDR",
    )
    worker_ports: str | None = _group(
        None,
        "ports that workers listen on: gRPC, metrics and lifelines in the lower half, UCX in the upper"
        " half (default: any free ones)",
        "LOW-HIGH",
    )
    placement: NodePlacement = _group(
        NodePlacement.PACK,
        "nodes of workers; pack: as few as possible, for the fastest KV transfer; spread: as many as"
        " possible; strict-spread: one worker per node",
    )
    wait_for_nodes: int | None = _group(
        None,
        "with --ray-address: place workers when the cluster has this many nodes, the head included"
        " (default: as soon as there is room)",
        "N",
        least=1,
    )
    autoscale: str | None = _group(
        None,
        "bounds between which the number of workers follows the load, such as 'decode=1:4 prefill=1:2'"
        " (default: fixed; `router scale` changes it). With 0 as the least, a request starts the first"
        " worker and waits --failover-timeout for it",
        "'ROLE=LEAST:MOST ...'",
    )
    autoscale_cooldown: float = _group(
        300.0, "--autoscale: end a worker when it was superfluous for this time", "SECONDS", above=0
    )
    worker_env: str | None = _group(
        None,
        "environment of workers, such as 'UCX_NET_DEVICES=mlx5_0:1 NCCL_DEBUG=INFO'; shell quoting",
        "'KEY=VALUE ...'",
    )
    startup_timeout: float = _group(
        900.0, "give up when not all workers are ready after this time", "SECONDS", above=0
    )
