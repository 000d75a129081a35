"""Two routers on two of three nodes: the machine of one is lost, and clients of the other one lose nothing.

First the machine without Ray's head, then the one with it.
"""

from __future__ import annotations

import time

import pytest

from scripts.cluster.machines import USER, why_not
from scripts.cluster.three_nodes import NODES, ThreeNodes, command_with
from tests.cluster.steps import (
    PACKAGES,
    PATIENCE,
    PATIENCE_S,
    REDIS,
    ROUTER_TIMEOUT_S,
    Load,
    expect,
    question,
    show,
    start_redis,
)
from tests.faults.support.small_model import SmallModel

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not(*PACKAGES)), reason=why_not(*PACKAGES)),
]
OTHER = "w1"
"""The node of the second router, which is the later one: of both, it decides for the cluster."""


@pytest.fixture(scope="module", autouse=True)
def routers(cluster: ThreeNodes) -> None:
    cluster.type(command_with("get-auth-token"))
    start_redis(cluster)
    cluster.type(command_with("ray up -y deploy"), timeout_s=600)
    cluster.type(command_with("rsync-up"))
    cluster.type(command_with("service start"))
    cluster.wait_until(cluster.is_ready, 600)
    cluster.start_router(OTHER)


def homes(cluster: ThreeNodes, node: str = "head") -> dict[str, tuple[str, int]]:
    """Node and pid of every worker, as the router on `node` sees them."""
    return {name: (worker.node, worker.pid) for name, worker in cluster.workers(node).items()}


def there(cluster: ThreeNodes, *, without: str = "") -> set[tuple[str, int]]:
    """Node and pid of every process of a worker, on any node but `without`."""
    return {
        (node.name, pid)
        for node in cluster.nodes
        if node.name != without
        for pid in node.processes("ray::PrefillWorker", "ray::DecodeWorker")
    }


def order(cluster: ThreeNodes, node: str, command: str) -> tuple[bool, str]:
    """Whether the router on `node` does it, and what it says."""
    done = cluster.machines[node].run(
        f"~/baton/venv/bin/router {command}", user=USER, check=False, timeout_s=200
    )
    return done.returncode == 0, done.stdout + done.stderr


def test_a_new_version_is_rolled_router_by_router_without_a_failed_request(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    before = homes(cluster)
    for node in cluster.nodes:  # as `pip install` of another wheel
        node.run("cd ~/baton/venv/lib/python3*/site-packages; echo '# new' >> common/version.py", user=USER)
    began = time.monotonic()
    for number, (old, other) in enumerate((("head", OTHER), (OTHER, "head"))):
        load = Load(cluster, small, seed=540 + 10 * number, node=other, answers=4)
        cluster.machines[old].run("~/baton/service restart", user=USER, timeout_s=200)
        cluster.wait_until(lambda old=old: cluster.is_ready(old))
        asked = question(small, 560 + number)
        expect(small, asked, cluster.ask(asked, old))
        load.end()
        show(longest_pause=load.longest_pause)
    cluster.wait_for_workers()
    show(rolled=f"{time.monotonic() - began:.0f} s")
    after = homes(cluster)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert homes(cluster, OTHER) == after


def test_the_cluster_goes_on_with_one_router_when_the_node_of_the_other_one_is_cut_off(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    before = homes(cluster)
    assert homes(cluster, OTHER) == before
    assert {node for node, _ in before.values()} == set(NODES)
    load = Load(cluster, small, seed=600, answers=4)
    lost = Load(cluster, small, seed=610, node=OTHER, answers=2)
    cluster.machines.cut(OTHER)
    cut = time.monotonic()
    elsewhere = {name: home for name, home in before.items() if home[0] != OTHER}
    cluster.wait_until(lambda: OTHER not in {node for node, _ in homes(cluster).values()})
    cluster.wait_for_workers()
    show(whole_without_the_node=f"{time.monotonic() - cut:.0f} s after the cut")
    adopted = homes(cluster)
    assert adopted.keys() == before.keys()
    assert elsewhere.items() <= adopted.items(), "a worker was restarted that had lost nothing"
    load.end()
    show(longest_pause=load.longest_pause)
    lost.end_lost()
    asked = question(small, 620)
    expect(small, asked, cluster.ask(asked))


def test_the_router_that_is_left_decides_for_the_cluster(cluster: ThreeNodes) -> None:
    before = homes(cluster)
    assert order(cluster, "head", "scale decode 3") == (
        True,
        "decode workers: decode-0, decode-1, decode-2\n",
    )
    grown = homes(cluster)
    assert before.items() < grown.items()
    assert order(cluster, "head", "scale decode 2")[0]
    assert len(homes(cluster)) == len(before)
    cluster.wait_until(
        lambda: {home for home in there(cluster) if home[0] != OTHER} == set(homes(cluster).values())
    )


def test_a_router_that_is_cut_off_neither_starts_nor_ends_a_worker(cluster: ThreeNodes) -> None:
    before = homes(cluster)
    for command in (
        "scale decode 4",
        "drain decode-0 --force",
        "restart prefill-0 --force",
        "scale decode 1",
    ):
        done, said = order(cluster, OTHER, command)
        show(command=command, said=said.strip())
        assert not done
        assert "Deadline Exceeded" in said or "Timed out" in said
    assert homes(cluster) == before


def test_a_router_that_is_back_owns_nothing_and_starts_nothing(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    before = homes(cluster)
    begun = len(cluster.log(OTHER))
    load = Load(cluster, small, seed=630, answers=4)
    mended = time.monotonic()
    cluster.machines.mend(OTHER)
    cluster.wait_until(lambda: "the router ended with status 3" in cluster.log(OTHER)[begun:])
    cluster.wait_until(lambda: cluster.is_ready(OTHER))
    show(serves_again=f"{time.monotonic() - mended:.0f} s after the link is back")
    cluster.wait_for_workers()
    load.end()
    assert homes(cluster) == before
    cluster.wait_until(lambda: homes(cluster, OTHER) == before, 30)
    assert there(cluster) == set(before.values())
    for number, node in enumerate(("head", OTHER)):
        asked = question(small, 640 + number)
        expect(small, asked, cluster.ask(asked, node))
    cluster.wait_until_idle(before, 60)


def test_a_router_on_another_machine_serves_while_the_head_s_is_replaced(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    before = homes(cluster, OTHER)
    elsewhere = {name: home for name, home in before.items() if home[0] != "head"}
    assert len(elsewhere) < len(before), "no worker is on the head"
    load = Load(cluster, small, seed=700, node=OTHER, answers=4)
    head, router = cluster.machines["head"], cluster.machines[OTHER].processes("bin/router --config")
    cluster.machines.switch_off("head")
    off = time.monotonic()
    asked = question(small, 710)
    expect(small, asked, cluster.ask(asked, OTHER))
    load.end()
    show(longest_pause=load.longest_pause)

    head.run("rm -rf /tmp/ray ~/baton/gcs ~/baton/*.log", user=USER)  # another disk
    cluster.machines.mend("head")
    head.run(f"{REDIS}bash ~/baton/start_ray head again; ~/baton/service start", user=USER, timeout_s=120)
    show(another_head=f"{time.monotonic() - off:.0f} s after the loss")
    asked = question(small, 711)
    expect(small, asked, cluster.ask(asked, OTHER))
    cluster.wait_until(cluster.is_ready)
    cluster.wait_for_workers()
    show(whole_again=f"{time.monotonic() - off:.0f} s after the loss")
    time.sleep(30)  # the autoscaler looks every 5 s whether nodes have to be set up
    after = homes(cluster)
    assert after.keys() == before.keys()
    assert elsewhere.items() <= after.items()
    assert there(cluster) == set(after.values())
    assert cluster.machines[OTHER].processes("bin/router --config") == router
    for number, node in enumerate(("head", OTHER)):
        asked = question(small, 720 + number)
        expect(small, asked, cluster.ask(asked, node))


def test_without_a_head_a_router_serves_until_it_gives_ray_up_and_comes_back_with_the_next_one(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    cluster.machines[OTHER].run("~/baton/service stop", user=USER)
    cluster.start_router(OTHER, PATIENCE)
    begun = len(cluster.log(OTHER))
    cluster.machines.switch_off("head")
    off, number = time.monotonic(), 0

    def says(words: str) -> bool:
        return words in cluster.log(OTHER)[begun:]

    while not says("the router ends"):
        asked = question(small, 800 + (number := number + 1))
        answer = cluster.ask(asked, OTHER)
        served = time.monotonic() - off
        if answer.error:
            cluster.wait_until(lambda: says("the router ends"), 10)
        else:
            expect(small, asked, answer)
        assert number < 300
    show(served_without_the_head=f"{served:.0f} s", requests=number)
    assert served > PATIENCE_S - ROUTER_TIMEOUT_S
    cluster.wait_until(lambda: says("the router ended with status 3"), 60)
    cluster.wait_until(lambda: not there(cluster), 60 + 3 * ROUTER_TIMEOUT_S)

    cluster.machines.mend("head")
    cluster.type(command_with("ray up -y deploy"), timeout_s=600)
    cluster.type(command_with("service start"))
    for node in ("head", OTHER):
        cluster.wait_until(lambda node=node: cluster.is_ready(node), 300)
    asked = question(small, 810)
    expect(small, asked, cluster.ask(asked, OTHER))
