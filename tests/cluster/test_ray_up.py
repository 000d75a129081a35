"""deploy/cluster.yaml as an operator uses it, on three nodes; the tests are the steps of one story."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from common.ports import PortRange
from scripts.cluster.clients import Stream
from scripts.cluster.machines import USER, why_not
from scripts.cluster.three_nodes import (
    DEPLOY,
    NODES,
    ThreeNodes,
    Worker,
    build_wheel,
    command_with,
    commands,
)
from tests.faults.support.small_model import Question, SmallModel, save_small_model

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    # The small model's, scaled by the number of features: with larger weights, rounding decides attention.
    "initializer_range": 0.175,
}
TOKEN_BYTES = 2 * 4 * 256 * 4
"""Of KV in float32."""
TIMEOUT_S, GRACE_S, ROUTER_TIMEOUT_S = 1.0, 3.0, 20.0
PORTS = PortRange(11000, 11031)
SETTINGS: Mapping[str, object] = {
    "device": "cpu",
    "dtype": "float32",  # texts are compared with those of transformers
    "worker-cpus": 1,
    "kv-pool-tokens": 16384,
    "worker-timeout": TIMEOUT_S,
    "worker-grace": GRACE_S,
    "router-timeout": ROUTER_TIMEOUT_S,
    "worker-env": "UCX_TLS=tcp UCX_NET_DEVICES=eth0",
    "worker-ports": str(PORTS),
}
OF_BATON = ("raylet", "gcs_server", "ray::", "log_monitor", "agent.py", "monitor.py", "bin/router")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("model")
    small = save_small_model(folder, **SHAPE)
    for path in (folder, *folder.iterdir()):  # for the user of the nodes
        path.chmod(0o755 if path.is_dir() else 0o644)
    return small


@pytest.fixture(scope="module")
def cluster(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    wheel = build_wheel(tmp_path_factory.mktemp("checkout"))
    with ThreeNodes(wheel, small.folder, **SETTINGS) as cluster:
        yield cluster


def question(small: SmallModel, seed: int, *, length: int = 400, max_tokens: int = 64) -> Question:
    return small.question(seed, length=length, max_tokens=max_tokens)


def expect(small: SmallModel, question: Question, stream: Stream) -> None:
    assert not stream.error
    assert stream.text == small.text(small.answer(question))


def show(**figures: object) -> None:
    print(" ", ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


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


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus")
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


def restart(cluster: ThreeNodes) -> None:
    """The router, with the settings as they are now."""
    cluster.type(command_with("rsync-up"))
    cluster.type(command_with("service start").replace("start", "restart"))
    cluster.wait_until(cluster.is_ready)


def place_anew(cluster: ThreeNodes) -> None:
    """New workers, wherever Ray places them."""
    cluster.type(command_with("service stop").replace("stop", "stop --workers"))
    cluster.type(command_with("service start"))
    cluster.wait_until(cluster.is_ready)


def pids_of_workers(cluster: ThreeNodes) -> dict[str, int]:
    return {name: worker.pid for name, worker in cluster.workers().items()}


def load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> tuple[list[Question], list[Stream]]:
    """Six long answers, all of them being written."""
    questions = [question(small, seed + i, max_tokens=600) for i in range(6)]
    streams = [stream for _, stream in cluster.watch(questions)]
    cluster.wait_until(lambda: all(len(stream.stamps) > 5 for stream in streams), 60)
    return questions, streams


def expect_all(
    cluster: ThreeNodes, small: SmallModel, questions: Sequence[Question], streams: Sequence[Stream]
) -> None:
    cluster.wait_until(lambda: all(stream.is_over for stream in streams))
    for asked, stream in zip(questions, streams, strict=True):
        expect(small, asked, stream)


def busiest(cluster: ThreeNodes, *, beside: str = "") -> tuple[str, Worker]:
    """The worker with most requests on a node other than `beside`."""
    workers = {name: w for name, w in cluster.workers().items() if w.node and w.node != beside}
    name = max(workers, key=lambda name: workers[name].requests)
    assert workers[name].requests
    return name, workers[name]


def kill_under_load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> None:
    """The streams of a worker whose process is killed go on elsewhere, and it comes back."""
    questions, streams = load(cluster, small, seed=seed)
    name, worker = busiest(cluster)
    cluster.machines[worker.node].run(f"kill -9 {worker.pid}")
    expect_all(cluster, small, questions, streams)
    show(killed=name, longest_pause=f"{max(stream.longest_pause for stream in streams):.2f} s")
    cluster.wait_until(lambda: cluster.workers()[name].pid not in (0, worker.pid))
    cluster.wait_for_workers()


def cut_under_load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> str:
    """The streams of a node that is cut off go on elsewhere before Ray notices. Returns the worker's name."""
    questions, streams = load(cluster, small, seed=seed)
    name, worker = busiest(cluster, beside="head")
    others = cluster.homes().keys() - {name}
    fences = cluster.log().count(f"{name} is fenced")

    def is_fenced() -> bool:
        return cluster.log().count(f"{name} is fenced") > fences

    cluster.machines.cut(worker.node)
    cut = time.monotonic()
    cluster.wait_until(lambda: all(s.is_over or s.stamps[-1] > cut + TIMEOUT_S for s in streams), 60)
    assert not is_fenced()
    expect_all(cluster, small, questions, streams)
    paused = [stream.longest_pause for stream in streams if stream.longest_pause > TIMEOUT_S]
    assert paused, "no stream was on the node"
    show(cut_off=f"{name} on {worker.node}", paused=len(paused), longest_pause=f"{max(paused):.2f} s")
    later = question(small, seed + 6)
    expect(small, later, cluster.ask(later))
    cluster.wait_until(is_fenced, 120)
    cluster.wait_until_idle(others, 60)
    return name


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
    show(serves_again=f"{time.monotonic() - killed:.1f} s after the kill, 5 s of them the supervisor's")
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
    receiver = next(w for w, home in homes.items() if w.startswith("decode") and home != node.name)
    questions = [question(small, seed, length=1500, max_tokens=16) for seed in range(70, 86)]
    watched = cluster.watch(questions)
    cluster.wait_until(lambda: cluster.pages(receiver).get("in_flight"), 60)
    cluster.machines.cut(node.name)
    lent = cluster.wait_until(lambda: cluster.pages(receiver).get("quarantined"), 60)
    assert "prefill-0 is fenced" not in cluster.log()
    show(quarantined=f"{lent:g} pages of {receiver} before the fence")
    cluster.wait_until(lambda: "prefill-0 is fenced" in cluster.log(), 60)
    for asked, (future, _) in zip(questions, watched, strict=True):
        expect(small, asked, future.result())
    cluster.wait_until_idle([receiver], 60)
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
    cluster.type(command_with("ray up -y deploy"), timeout_s=600)
    cluster.wait_until(lambda: "the router ended with status 3" in cluster.log(), 120)
    assert "the router ends" in cluster.log()
    cluster.wait_until(cluster.is_ready, 300)
    asked = question(small, 60)
    expect(small, asked, cluster.ask(asked))


def test_ray_down_leaves_no_process_on_any_node(cluster: ThreeNodes) -> None:
    cluster.type(command_with("service stop"))
    cluster.type(command_with("ray down"))
    down = time.monotonic()
    for node in cluster.nodes:
        cluster.wait_until(lambda node=node: not node.processes(*OF_BATON), 150)
    show(nothing_left=f"{time.monotonic() - down:.0f} s after ray down")


def test_every_command_of_the_file_was_run_as_it_stands(cluster: ThreeNodes) -> None:
    wheel = command_with("make wheel")  # by build_wheel
    assert set(commands(DEPLOY / "cluster.yaml")) - set(cluster.typed) == {wheel}
