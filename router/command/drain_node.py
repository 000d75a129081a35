"""`router drain-node`: before a node ends, the requests of its workers move to workers of other nodes.

It needs no router of its own: it tells the workers through Ray, they report it to all routers, and those move
their requests, as for a worker that another router drains. The processes stay: they end with the node, and
Ray starts them on another one with room.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from router.cluster.node_actors import CannotJoin, joined
from router.cluster.ray_cluster import NAMESPACE_OF_WORKERS

_ANSWER_S: Final = 5.0
"""For a worker to say where it runs; one that does not answer has no requests that could move."""
_MARGIN_S: Final = 5.0


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 if the workers of this node have no request left, 1 otherwise, or without a Ray."""
    arguments = make_parser().parse_args(argv)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with joined(arguments.ray_address):
            return _drain(arguments.node or ray.get_runtime_context().get_node_id(), arguments.timeout)
    except CannotJoin as error:
        print(f"router drain-node: no Ray at {arguments.ray_address}: {error}", file=sys.stderr)
        return 1


def _drain(node: str, timeout_s: float) -> int:
    workers = {name: actor for name, actor in _workers().items() if _node_of(actor) == node}
    if not workers:
        print(f"no worker runs on node {node}")
        return 0
    began = time.monotonic()
    print(f"draining {', '.join(workers)}: their requests move to other nodes", flush=True)
    drains = {name: actor.drain.remote(timeout_s) for name, actor in workers.items()}
    return max([_report(name, drain, began, timeout_s) for name, drain in drains.items()])


def _report(name: str, drain: Any, began: float, timeout_s: float) -> int:
    left = max(began + timeout_s + _MARGIN_S - time.monotonic(), 0.0)
    try:
        is_empty = ray.get(drain, timeout=left)
    except (RayError, TimeoutError) as error:
        print(f"{name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return 1
    took = f"after {time.monotonic() - began:.1f} s"
    print(f"{name}: {'no request is left' if is_empty else 'requests are left'} {took}", flush=True)
    return 0 if is_empty else 1


def _workers() -> dict[str, Any]:
    """All workers of all clusters in this Ray, by cluster and worker id."""
    found = {}
    for actor in list_named_actors(all_namespaces=True):
        cluster, name = actor["namespace"].removeprefix(NAMESPACE_OF_WORKERS), actor["name"]
        if cluster != actor["namespace"]:
            try:
                found[f"{cluster}/{name}"] = ray.get_actor(name, actor["namespace"])
            except ValueError:  # it has ended meanwhile
                continue
    return found


def _node_of(worker: Any) -> str | None:
    try:
        node: str = ray.get(worker.node.remote(), timeout=_ANSWER_S)
    except (RayError, TimeoutError):
        return None
    return node


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router drain-node",
        description="Move all requests off the workers of a node, before it ends.",
    )
    parser.add_argument("--node", metavar="ID", help="Ray's id of the node (default: this machine's)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for requests to move or to finish (default: %(default)g)",
    )
    parser.add_argument(
        "--ray-address", default="auto", metavar="ADDRESS", help="Ray cluster (default: that of this machine)"
    )
    return parser
