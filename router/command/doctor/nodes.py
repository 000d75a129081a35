"""Checks every node of a running cluster and the links between them: ports, KV bandwidth, clocks, limits.

The checks run in an actor on each node, with the environment, network and ports of workers. Links are
measured in a ring, in which every node sends and receives once; all n (n - 1) links would take too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from common.ports import PortRange
from router.cluster.node_actors import CannotJoin, NodeActor, NodeSilent, actor_on, joined
from router.cluster.nodes import Node, nodes, until_enough
from router.command.doctor.end_process import LinkFailed, WriteRate
from router.command.doctor.machine import check_files, check_memlock, check_shm
from router.command.doctor.node_probe import NodeFacts, NodeProbe
from router.command.doctor.report import Finding, Verdict, fail, ok, warn
from router.config.choices import Device
from router.config.flags.text_settings import environment_of
from router.config.settings import RouterConfig

_PATIENCE_S: Final = 60.0
"""Timeout for one end of a link, which imports torch and NIXL and registers memory."""
_LEAST: Final = 1e9
_CERTIFICATES_S: Final = 86_400.0
"""Certificates that workers draw are valid from a day before they are drawn."""
_SKEW_S: Final = 1.0
_CLOCK_ROUNDS: Final = 3
_PORTS: Final = "open the ports of docs/deployment.md between all nodes; set --worker-ports for a fixed range"


def check(config: RouterConfig) -> Iterator[Finding]:
    """Check the cluster at `config.cluster.ray_address`. Takes some ten seconds per node."""
    address = config.cluster.ray_address
    assert address is not None
    try:
        with joined(address):
            yield from _look(config)
    except CannotJoin as error:
        advice = "run it on a node of the cluster, with RAY_AUTH_MODE=token; see `ray status`"
        yield fail("ray", f"cannot join {address}: {error}", advice)


def _look(config: RouterConfig) -> Iterator[Finding]:
    settings = config.cluster
    alive = asyncio.run(_wait_for_nodes(config))
    yield check_count(alive, settings.wait_for_nodes)
    ports = None if settings.worker_ports is None else PortRange.parse(settings.worker_ports)
    environment = environment_of(settings.worker_env)
    actors = [
        actor_on(node, NodeProbe, node.address, settings.worker_network, ports, environment=environment)
        for node in alive
    ]
    answering = []
    versions: Mapping[str, str] = {}
    infiniband = set()
    for actor in actors:
        try:
            actor.ask("address")
            facts: NodeFacts = actor.ask("facts", config.model)
        except (NodeSilent, OSError) as error:
            yield fail(actor.node.hostname, str(error), "see Ray's logs of this node, and --worker-network")
            continue
        answering.append(actor)
        versions = versions or facts.versions
        if facts.has_infiniband:
            infiniband.add(actor.node.id)
        yield from _node_rows(actor, facts, versions)
    for source, target in _ring(answering):
        yield _reach(source, target)
        both = {source.node.id, target.node.id} <= infiniband
        yield _link(source, target, _device(config, source), _device(config, target), has_infiniband=both)


async def _wait_for_nodes(config: RouterConfig) -> list[Node]:
    """The nodes that are alive when there are enough of them, or after --startup-timeout."""

    wanted = config.cluster.wait_for_nodes or 1

    async def ask() -> Sequence[Node]:
        return nodes()

    with contextlib.suppress(TimeoutError):  # reported by check_count
        async with asyncio.timeout(config.cluster.startup_timeout):
            await until_enough(ask, wanted, lambda what: print(what, file=sys.stderr))
    return [node for node in nodes() if node.alive]


def _node_rows(actor: NodeActor, facts: NodeFacts, versions: Mapping[str, str]) -> Iterator[Finding]:
    """One row if all checks pass, otherwise one per failed check."""
    name = actor.node.hostname
    findings = [
        check_versions(facts.versions, versions),
        check_files(facts.open_files),
        check_memlock(facts.locked_memory, facts.has_infiniband),
        check_shm(facts.shared_memory),
        check_clock(*_clock(actor)),
        check_model(facts.model_trouble),
    ]
    wrong = [finding for finding in findings if finding.verdict is not Verdict.OK]
    if not wrong:
        yield ok(name, "; ".join(f"{finding.name}: {finding.text}" for finding in findings if finding.text))
    for finding in wrong:
        yield replace(finding, name=name, text=f"{finding.name}: {finding.text}")


def _clock(actor: NodeActor) -> tuple[float, float]:
    """Seconds by which the node's clock is ahead of ours, and the error of this measurement."""
    best = (0.0, float("inf"))
    for _ in range(_CLOCK_ROUNDS):
        before = time.time()
        there: float = actor.ask("clock")
        after = time.time()
        best = min(best, (there - (before + after) / 2, (after - before) / 2), key=lambda pair: pair[1])
    return best


def _reach(source: NodeActor, target: NodeActor) -> Finding:
    name = f"{source.node.hostname} → {target.node.hostname}"
    try:
        address, port = target.ask("listen")
        return check_reach(name, f"{address}:{port}", source.ask("reach", address, port))
    except (NodeSilent, OSError) as error:
        return fail(name, f"ports: {error}", _PORTS)


def _link(
    source: NodeActor, target: NodeActor, sends: str, receives: str, *, has_infiniband: bool
) -> Finding:
    name = f"{source.node.hostname} → {target.node.hostname}"
    try:
        here = source.ask("peer", "writer", sends, _PATIENCE_S)
        there = target.ask("peer", "reader", receives, _PATIENCE_S)
        target.ask("meet", here)
        source.ask("meet", there)
        link: WriteRate = source.ask("link", _PATIENCE_S)
    except (NodeSilent, LinkFailed, OSError) as error:
        return fail(name, f"no KV can be moved: {error}", f"{_PORTS}; see UCX_NET_DEVICES in --worker-env")
    finally:
        for actor in (source, target):
            _close(actor)
    return check_link(name, link, has_infiniband=has_infiniband)


def _close(actor: NodeActor) -> None:
    with contextlib.suppress(NodeSilent):  # its processes ended too, and the link was reported as broken
        actor.ask("close")


def _ring(actors: Sequence[NodeActor]) -> list[tuple[NodeActor, NodeActor]]:
    if len(actors) < 2:
        return []
    return list(zip(actors, [*actors[1:], actors[0]], strict=True))


def _device(config: RouterConfig, actor: NodeActor) -> str:
    return "cuda:0" if actor.node.has_gpu and config.device is not Device.CPU else "cpu"


def check_count(alive: Sequence[Node], wanted: int | None) -> Finding:
    text = f"{len(alive)} alive: {', '.join(node.name for node in alive)}"
    if wanted is not None and len(alive) < wanted:
        return fail("nodes", f"{text}; --wait-for-nodes {wanted}", "see ~/baton/ray.log on the missing ones")
    return ok("nodes", text)


def check_versions(found: Mapping[str, str], first: Mapping[str, str]) -> Finding:
    """Compare with the versions of the first node."""
    differing = [
        f"{name} {found.get(name, 'missing')}, elsewhere {first.get(name, 'missing')}"
        for name in sorted(found.keys() | first.keys())
        if found.get(name) != first.get(name)
    ]
    if differing:
        return fail("packages", "; ".join(differing), "install the same wheel everywhere: `ray up -y`")
    return ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def check_clock(ahead_s: float, uncertainty_s: float) -> Finding:
    off = max(abs(ahead_s) - uncertainty_s, 0.0)
    text = f"{ahead_s:+.3f} s to the head's, ± {uncertainty_s:.3f}"
    if off > _CERTIFICATES_S:
        return fail(
            "clock", text, "workers' certificates are not valid then: run an NTP client on every node"
        )
    if off > _SKEW_S:
        return warn(
            "clock", text, "logs and metrics of nodes do not line up: run an NTP client on every node"
        )
    return ok("clock", text)


def check_model(trouble: str) -> Finding:
    if trouble:
        return fail("model", trouble, "put it under one path on every node, readable for this user")
    return ok("model", "")


def check_reach(name: str, target: str, reason: str) -> Finding:
    if reason:
        return fail(name, f"cannot connect to {target}: {reason}", _PORTS)
    return ok(name, f"connects to {target}")


def check_link(name: str, link: WriteRate, *, has_infiniband: bool) -> Finding:
    """`has_infiniband`: both nodes have an RDMA device."""
    if has_infiniband and "tcp" in link.path:
        return fail(
            name,
            f"{link}, though both nodes have InfiniBand or RoCE",
            "set UCX_TLS=rc,cuda and UCX_NET_DEVICES in --worker-env; memlock must be unlimited",
        )
    if link.bytes_per_s < _LEAST:
        return warn(
            name, str(link), "less than 1 GB/s: name a faster network in UCX_NET_DEVICES of --worker-env"
        )
    return ok(name, str(link))
