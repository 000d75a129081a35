"""What several tests do to the three nodes, and expect of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping

from common.ports import PortRange
from scripts.cluster.clients import Stream
from scripts.cluster.three_nodes import ThreeNodes, Worker, command_with
from tests.faults.support.small_model import Question, SmallModel

PACKAGES = ("redis-server", "prometheus")
"""Debian packages that the tests need beside those of the machines; `make test-cluster` asks for them."""
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    # The small model's, scaled by the number of features: with larger weights, rounding decides attention.
    "initializer_range": 0.175,
}
MARGIN = 3e-4
"""Margin of logits up to 13. Two ways to compute them differ by less than 1e-4."""
TOKEN_BYTES = 2 * 4 * 256 * 4
"""Bytes of a token's KV in float32."""
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

REDIS = "RAY_REDIS_ADDRESS=10.0.0.2:6390 REDIS_PASSWORD=swordfish "
PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s=120 "
"""For less waiting; 600 otherwise."""
PATIENCE_S = 85.0
"""For which a router then does without Ray."""
START_WORKER = "bash ~/baton/start_ray worker $RAY_HEAD_IP"


def start_redis(cluster: ThreeNodes) -> None:
    """On the operator's machine; the head keeps its state there from the next `ray up` on."""
    cluster.edit_file("cluster.yaml", head_start_ray_commands=[f"{REDIS}bash ~/baton/start_ray head"])
    cluster.ops.run("redis-server --port 6390 --bind 0.0.0.0 --requirepass swordfish --daemonize yes")


def question(small: SmallModel, seed: int, *, length: int = 400, max_tokens: int = 64) -> Question:
    """Whose answer no rounding changes, however chunks and batches are cut."""
    seeds = itertools.count(seed, 10_000)
    drawn = (small.question(one, length=length, max_tokens=max_tokens) for one in seeds)
    return next(asked for asked in drawn if small.margin(asked) > MARGIN)


def expect(small: SmallModel, question: Question, stream: Stream) -> None:
    assert not stream.error
    assert stream.text == small.text(small.answer(question))


def show(**figures: object) -> None:
    print(" ", ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


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


class Load:
    """Streams of long answers through one router, each asked for again when it ends, until `end`.

    So a fault finds streams on every worker, however long it takes to choose one, and none ends meanwhile.
    """

    def __init__(
        self, cluster: ThreeNodes, small: SmallModel, *, seed: int, node: str = "head", answers: int = 6
    ) -> None:
        """Returns when all answers are being written."""
        self._cluster, self._small, self._node = cluster, small, node
        self._asked: list[tuple[Question, Stream]] = []
        self._continues = True
        self._lock = threading.Lock()
        for number in range(answers):
            self._ask(question(small, seed + number, max_tokens=800))
        begun = self.streams
        cluster.wait_until(lambda: all(len(stream.stamps) > 5 for stream in begun), 60)

    @property
    def streams(self) -> list[Stream]:
        """All so far."""
        with self._lock:
            return [stream for _, stream in self._asked]

    @property
    def longest_pause(self) -> str:
        return f"{max(stream.longest_pause for stream in self.streams):.2f} s"

    def end(self) -> None:
        """Let the last answers end, and compare all of them."""
        self.stop()
        self._cluster.wait_until(lambda: all(stream.is_over for stream in self.streams))
        for asked, stream in self._asked:
            expect(self._small, asked, stream)

    def end_lost(self) -> None:
        """The same for a load whose router is lost: each stream has the beginning of its answer."""
        self.stop()
        for asked, stream in self._asked:
            assert self._small.text(self._small.answer(asked)).startswith(stream.text)

    def stop(self) -> None:
        """Ask no more."""
        with self._lock:
            self._continues = False

    def _ask(self, asked: Question) -> None:
        with self._lock:
            if not self._continues:
                return
            ((future, stream),) = self._cluster.watch([asked], self._node)
            self._asked.append((asked, stream))
        future.add_done_callback(lambda done: None if done.result().error else self._ask(asked))


def busiest(cluster: ThreeNodes, *, beside: str = "") -> tuple[str, Worker]:
    """The worker with most requests on a node other than `beside`."""
    workers = {name: w for name, w in cluster.workers().items() if w.node and w.node != beside}
    name = max(workers, key=lambda name: workers[name].requests)
    assert workers[name].requests
    return name, workers[name]


def kill_under_load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> None:
    """The streams of a worker whose process is killed go on elsewhere, and it comes back."""
    load = Load(cluster, small, seed=seed)
    name, worker = busiest(cluster)
    cluster.machines[worker.node].run(f"kill -9 {worker.pid}")
    killed = time.monotonic()
    cluster.wait_until(lambda: all(s.is_over or s.stamps[-1:] > [killed] for s in load.streams), 60)
    load.end()
    show(killed=name, longest_pause=load.longest_pause)
    cluster.wait_until(lambda: cluster.workers()[name].pid not in (0, worker.pid))
    cluster.wait_for_workers()


def cut_under_load(cluster: ThreeNodes, small: SmallModel, *, seed: int) -> str:
    """The streams of a node that is cut off go on elsewhere before Ray notices. Returns the worker's name."""
    load = Load(cluster, small, seed=seed)
    name, worker = busiest(cluster, beside="head")
    others = cluster.homes().keys() - {name}
    fences = cluster.log().count(f"{name} is fenced")

    def is_fenced() -> bool:
        return cluster.log().count(f"{name} is fenced") > fences

    cluster.machines.cut(worker.node)
    cut = time.monotonic()
    streams = load.streams
    cluster.wait_until(lambda: all(s.is_over or s.stamps[-1:] > [cut + TIMEOUT_S] for s in streams), 60)
    assert not is_fenced()
    load.end()
    paused = [stream.longest_pause for stream in streams if stream.longest_pause > TIMEOUT_S]
    assert paused, "no stream was on the node"
    show(cut_off=f"{name} on {worker.node}", paused=len(paused), longest_pause=f"{max(paused):.2f} s")
    later = question(small, seed + 6)
    expect(small, later, cluster.ask(later))
    cluster.wait_until(is_fenced, 120)
    cluster.wait_until_idle(others, 60)
    return name
