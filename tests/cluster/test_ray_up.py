"""deploy/cluster.yaml as an operator uses it, on three nodes; the tests are the steps of one story."""

from __future__ import annotations

import json
import re
import time

import pytest

from scripts.cluster.machines import USER, why_not
from scripts.cluster.three_nodes import DEPLOY, NODES, ThreeNodes, command_with, commands
from tests.cluster.steps import (
    PACKAGES,
    PATIENCE,
    PORTS,
    ROUTER_TIMEOUT_S,
    START_WORKER,
    TOKEN_BYTES,
    Load,
    cut_under_load,
    expect,
    kill_under_load,
    pids_of_workers,
    place_anew,
    question,
    restart,
    show,
    start_redis,
)
from tests.faults.support.small_model import SmallModel

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not(*PACKAGES)), reason=why_not(*PACKAGES)),
]
OF_BATON = (
    *("raylet", "gcs_server", "ray::", "log_monitor", "agent.py", "monitor.py", "bin/router"),
    "start_ray",
)


def test_the_router_waits_for_three_nodes_and_places_a_worker_on_each(cluster: ThreeNodes) -> None:
    began = time.monotonic()
    cluster.type(command_with("get-auth-token"))
    print(cluster.type(command_with("ray up -y deploy"), timeout_s=600)[-3000:])
    up = time.monotonic()
    cluster.type(command_with("rsync-up"))
    cluster.type(command_with("service start"))
    cluster.wait_until(cluster.is_ready, 600)
    show(ray_up=f"{up - began:.0f} s", ready=f"{time.monotonic() - up:.0f} s later")
    assert "of 3 are alive" in cluster.log()
    assert sorted(cluster.homes().values()) == ["head", "w1", "w2"]
    assert cluster.active_nodes() == 3
    assert "prefill-0" in cluster.type(command_with("service status"))
    assert "workers:" in cluster.type(command_with("service log"))
    for node in cluster.nodes:
        assert node.run("stat -c %a ~/.ray/auth_token", user=USER).stdout.strip() == "600"


def test_the_doctor_moves_kv_from_each_node_to_the_next(cluster: ThreeNodes) -> None:
    rows = cluster.type(command_with("service doctor"))
    print(rows)
    assert "3 alive" in rows
    for name in NODES:
        assert re.search(rf"^OK +baton-{name} +packages: ", rows, re.MULTILINE)
        assert re.search(rf"baton-{name} → baton-\w+ connects to ", rows)
        assert re.search(rf"baton-{name} → baton-\w+ .* GB/s in 64 MiB writes, by tcp/eth0", rows)


def test_answers_are_right_and_their_kv_crosses_the_wire(cluster: ThreeNodes, small: SmallModel) -> None:
    home = cluster.machines[cluster.homes()["prefill-0"]]
    questions = [question(small, seed, length=1500) for seed in range(4)]
    before = home.bytes_sent()
    answers = [future.result() for future in cluster.stream(questions)]
    for asked, answer in zip(questions, answers, strict=True):
        expect(small, asked, answer)
    sent, kv = home.bytes_sent() - before, sum(len(q.prompt) for q in questions) * TOKEN_BYTES
    show(kv_bytes=kv, sent_by_the_prefill_node=sent)
    assert sent > kv


def test_prometheus_finds_the_router_and_every_worker(cluster: ThreeNodes) -> None:
    for command in commands(DEPLOY / "prometheus" / "prometheus.yml")[1:]:
        cluster.type(command)

    def healthy() -> dict[str, str]:
        done = cluster.machines["head"].run(
            "exec 3<>/dev/tcp/127.0.0.1/9090 && printf 'GET /api/v1/query?query=up HTTP/1.0\r\n\r\n' >&3"
            " && sed '1,/^\r$/d' <&3",
            check=False,
        )
        results = json.loads(done.stdout)["data"]["result"] if done.returncode == 0 else []
        return {r["metric"]["instance"]: r["metric"]["job"] for r in results if r["value"][1] == "1"}

    targets = cluster.wait_until(lambda: len(healthy()) == 4 and healthy(), 60)
    show(targets=targets)
    assert sorted(targets.values()) == ["baton-router"] + 3 * ["baton-workers"]
    assert {instance.partition(":")[0] for instance in targets} == {"127.0.0.1", *NODES.values()}


def test_workers_keep_to_their_ports(cluster: ThreeNodes) -> None:
    for node in cluster.nodes:
        lines = node.run("ss -Htlnp").stdout.splitlines()
        own = (line.split()[3] for line in lines if "ray::Prefill" in line or "ray::Decode" in line)
        open_to_others = {int(a.rpartition(":")[2]) for a in own if node.address in a}
        assert len(open_to_others) == 4, lines
        assert open_to_others <= set(PORTS), lines


def test_streams_of_a_killed_worker_continue_elsewhere(cluster: ThreeNodes, small: SmallModel) -> None:
    kill_under_load(cluster, small, seed=10)


def test_a_killed_router_is_started_again_and_finds_its_workers(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    before = pids_of_workers(cluster)
    head = cluster.machines["head"]
    (router,) = head.processes("bin/router --config")
    killed = time.monotonic()
    head.run(f"kill -9 {router}")
    cluster.wait_until(lambda: not cluster.is_ready(), 30)
    cluster.wait_until(cluster.is_ready, 60)
    show(serves_again=f"{time.monotonic() - killed:.1f} s after the kill")
    assert pids_of_workers(cluster) == before
    asked = question(small, 15)
    expect(small, asked, cluster.ask(asked))


def test_streams_of_a_partitioned_node_continue_before_ray_detects_it(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    assert cut_under_load(cluster, small, seed=20).startswith("decode")


def test_the_worker_on_a_node_that_is_cut_off_ends_itself(cluster: ThreeNodes) -> None:
    (node,) = cluster.machines.cut_off
    cluster.wait_until(lambda: not node.processes("ray::DecodeWorker"), 60 + 3 * ROUTER_TIMEOUT_S)


def test_the_node_joins_again_when_its_link_is_back(cluster: ThreeNodes, small: SmallModel) -> None:
    (node,) = cluster.machines.cut_off
    mended = time.monotonic()
    cluster.mend(node)
    show(whole_again=f"{time.monotonic() - mended:.0f} s after the link is back")
    asked = question(small, 40)
    expect(small, asked, cluster.ask(asked))


def test_pages_lent_to_a_prefill_worker_on_a_lost_node_come_back_after_the_fence(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    while (homes := cluster.homes())["prefill-0"] == "head":
        place_anew(cluster)
    node = cluster.machines[homes["prefill-0"]]
    receivers = [w for w, home in homes.items() if w.startswith("decode") and home != node.name]

    def lent(state: str) -> dict[str, int]:
        counts = {worker: cluster.pages(worker).get(state, 0) for worker in receivers}
        return {worker: count for worker, count in counts.items() if count}

    questions = [question(small, seed, length=1500, max_tokens=16) for seed in range(70, 86)]
    watched = cluster.watch(questions)
    cluster.wait_until(lambda: len(lent("in_flight")) == len(receivers), 60)
    cluster.machines.cut(node.name)
    found = cluster.wait_until(lambda: lent("quarantined"), 60)
    assert "prefill-0 is fenced" not in cluster.log()
    show(quarantined=f"{found} pages before the fence")
    cluster.wait_until(lambda: "prefill-0 is fenced" in cluster.log(), 60)
    for asked, (future, _) in zip(questions, watched, strict=True):
        expect(small, asked, future.result())
    cluster.wait_until_idle(receivers, 60)
    cluster.mend(node)


def test_ray_up_without_restart_changes_nothing(cluster: ThreeNodes, small: SmallModel) -> None:
    def pids() -> list[set[int]]:
        return [set(node.processes("raylet/raylet", "ray::", "gcs_server")) for node in cluster.nodes]

    before: list[set[int]] = []
    while (now := pids()) != before:  # the node whose link came back may have to restart Ray
        before = now
        time.sleep(15)
    cluster.type("mkdir -p __pycache__ .pytest_cache && date > __pycache__/x && date > .pytest_cache/x")
    asked = question(small, 50, max_tokens=800)
    ((future, _),) = cluster.watch([asked])
    cluster.type(command_with("--no-restart"), timeout_s=600)
    expect(small, asked, future.result())
    time.sleep(20)  # the autoscaler looks every 5 s whether nodes have to be updated
    assert pids() == before


def test_two_routers_and_their_workers_are_replaced_without_a_failed_request(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    """As an upgrade does it: one router after the other, while clients use the other one."""
    before = pids_of_workers(cluster)
    cluster.start_router("w1")
    assert pids_of_workers(cluster) == before

    cluster.edit(**{"max-running-requests": 32})
    cluster.type(command_with("rsync-up"))
    load = Load(cluster, small, seed=80, node="w1")
    upgraded = len(cluster.log())
    cluster.type(command_with("service start").replace("start", "restart"))
    number = 90
    while any(f"{worker} is ready again" not in cluster.log()[upgraded:] for worker in before):
        asked = question(small, number := number + 1)
        expect(small, asked, cluster.ask(asked, "w1"))
        assert number < 300, cluster.log()[upgraded:]
    load.end()
    show(asked_meanwhile=number - 90, longest_pause=load.longest_pause)
    after = pids_of_workers(cluster)
    assert not set(after.items()) & set(before.items())

    load = Load(cluster, small, seed=310)
    cluster.start_router("w1")
    load.end()
    asked = question(small, 320)
    expect(small, asked, cluster.ask(asked, "w1"))
    cluster.machines["w1"].run("~/baton/service stop", user=USER)
    assert pids_of_workers(cluster) == after


def kill_gcs_under_load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> None:
    """No stream, no worker and no router ends, and Ray restarts workers afterwards."""
    head = cluster.machines["head"]
    before, routers = pids_of_workers(cluster), head.processes("bin/router --config")
    load = Load(cluster, small, seed=seed)
    ((gcs, _),) = head.processes("gcs/gcs_server").items()
    killed = time.monotonic()
    head.run(f"kill -9 {gcs}")
    cluster.wait_until(lambda: set(head.processes("gcs/gcs_server")) - {gcs}, 60)
    cluster.wait_until(lambda: cluster.active_nodes() == len(NODES), 60)
    show(ray_answers=f"{time.monotonic() - killed:.1f} s after the kill")
    load.end()
    show(longest_pause=load.longest_pause)
    assert pids_of_workers(cluster) == before
    assert head.processes("bin/router --config") == routers
    kill_under_load(cluster, small, seed=seed + 10)


def test_nothing_ends_with_the_gcs_of_the_head_which_is_started_again(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    kill_gcs_under_load(cluster, small, seed=400)


def test_workers_of_other_nodes_outlive_the_ray_of_the_head(cluster: ThreeNodes, small: SmallModel) -> None:
    head = cluster.machines["head"]
    place_anew(cluster)  # one on each node
    elsewhere = {name: w.pid for name, w in cluster.workers().items() if w.node != "head"}
    assert len(elsewhere) == 2
    load = Load(cluster, small, seed=430)
    (raylet,) = head.processes("raylet/raylet")
    begun = len(cluster.log())
    killed = time.monotonic()
    head.run(f"kill -9 {raylet}")
    load.end()
    cluster.wait_until(lambda: "the router ended with status 3" in cluster.log()[begun:], 120)
    cluster.wait_until(cluster.is_ready, 120)
    show(serves_again=f"{time.monotonic() - killed:.1f} s after the kill")
    now = cluster.workers()
    assert {name: now[name].pid for name in elsewhere} == elsewhere
    asked = question(small, 440)
    expect(small, asked, cluster.ask(asked))
    cluster.wait_for_workers()


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (100, {"mode": "mixed", "decode-workers": 3, "prefill-workers": None}),
        (200, {"mode": "adaptive", "decode-workers": 2, "prefill-workers": 1}),
    ],
    ids=["mixed", "adaptive"],
)
def test_the_mode_is_changed_without_touching_ray_and_survives_a_kill_and_a_cut(
    cluster: ThreeNodes, small: SmallModel, seed: int, settings: dict[str, object]
) -> None:
    raylets = [set(node.processes("raylet/raylet")) for node in cluster.nodes]
    cluster.edit(**settings)
    restart(cluster)
    assert sorted(cluster.homes().values()) == sorted(NODES)
    assert [set(node.processes("raylet/raylet")) for node in cluster.nodes] == raylets
    kill_under_load(cluster, small, seed=seed)
    cut_under_load(cluster, small, seed=seed + 10)
    (node,) = cluster.machines.cut_off
    cluster.mend(node)
    asked = question(small, seed + 20)
    expect(small, asked, cluster.ask(asked))


def test_a_router_whose_ray_was_restarted_ends_with_the_reason_and_is_started_again(
    cluster: ThreeNodes, small: SmallModel
) -> None:
    start_redis(cluster)
    cluster.edit_file("cluster.yaml", worker_start_ray_commands=[f"{PATIENCE}{START_WORKER}"])
    begun = len(cluster.log())
    cluster.type(command_with("ray up -y deploy"), timeout_s=600)
    cluster.wait_until(lambda: "the router ended with status 3" in cluster.log()[begun:], 120)
    assert "the router ends" in cluster.log()[begun:]
    cluster.wait_until(cluster.is_ready, 300)
    asked = question(small, 60)
    expect(small, asked, cluster.ask(asked))


def test_gcs_keeps_its_state_in_redis_as_well(cluster: ThreeNodes, small: SmallModel) -> None:
    assert "baton" in cluster.ops.run("redis-cli -p 6390 -a swordfish keys '*'").stdout
    cluster.wait_until(lambda: cluster.active_nodes() == len(NODES))
    cluster.wait_for_workers()
    kill_gcs_under_load(cluster, small, seed=500)


def test_ray_down_leaves_no_process_on_any_node(cluster: ThreeNodes) -> None:
    cluster.type(command_with("service stop"))
    cluster.type(command_with("ray down"))
    down = time.monotonic()
    for node in cluster.nodes:
        cluster.wait_until(lambda node=node: not node.processes(*OF_BATON), 240)
    show(nothing_left=f"{time.monotonic() - down:.0f} s after ray down")


def test_every_command_of_the_file_was_run_as_it_stands(cluster: ThreeNodes) -> None:
    wheel = command_with("make wheel")  # by build_wheel
    assert set(commands(DEPLOY / "cluster.yaml")) - set(cluster.typed) == {wheel}
