"""What is known of this machine before Ray starts, and what is refused by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.cluster.ray_cluster import Cluster
from router.cluster.ray_connection import ClusterError, RayConnection
from router.cluster.worker_config.machine import PlanError
from router.command.startup import serve
from router.config.flags.command_line import parse
from tests.unit.router.cluster.worker_config.models import write_model


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        pytest.fail("Ray was started")

    monkeypatch.setattr("router.cluster.ray_connection.start_local_ray", refuse)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("router.cluster.ray_connection.num_local_gpus", lambda: count)


def cluster(line: str) -> Cluster:
    config = parse(["--model", "m", *line.split()])
    return Cluster(config, RayConnection([config]))


def test_a_machine_without_gpus_is_known_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)

    machine = cluster("--worker-cpus 3").known_machine()

    assert machine is not None
    assert (machine.device, machine.cpus, machine.host) == ("cpu", 3, "127.0.0.1")


def test_the_memory_of_its_gpus_is_known_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    monkeypatch.setattr("router.cluster.ray_cluster.gpu_memory", lambda: 80 << 30)

    machine = cluster("").known_machine()

    assert machine is not None
    assert (machine.device, machine.memory_bytes, machine.host) == ("cuda", 80 << 30, "127.0.0.1")


def test_a_gpu_whose_driver_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)

    def fail() -> int:
        raise RuntimeError("the CUDA driver reports error 999")

    monkeypatch.setattr("router.cluster.ray_cluster.gpu_memory", fail)

    with pytest.raises(ClusterError, match=r"GPU does not say how much memory it has: .* 999"):
        cluster("").known_machine()


def test_the_nodes_of_a_cluster_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)

    assert cluster("--ray-address auto").known_machine() is None


def test_a_device_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)

    with pytest.raises(PlanError, match="--device cuda"):
        cluster("--device cuda").known_machine()


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)

    with pytest.raises(ClusterError, match="3 ranks of workers need a GPU each and this machine has 2"):
        cluster("--decode-workers 3").known_machine()


async def test_a_plan_that_does_not_fit_the_model_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 0)
    write_model(tmp_path)
    ports = "--http-port 0 --grpc-port 0 --admin-port 0"
    line = f"--model {tmp_path} --dtype float32 --max-model-len 99999999 {ports}"

    with pytest.raises(PlanError, match="--max-model-len 99999999"):
        await serve([parse(line.split())])
