"""What the doctor makes of the nodes of a cluster, and of the ways between them."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from common.ports import PortRange
from router.cluster.nodes import Node
from router.command.doctor import command, nodes
from router.command.doctor.end_process import WriteRate
from router.command.doctor.node_probe import NodeProbe, versions_of
from router.command.doctor.report import Verdict

HEAD, W1 = Node("a", "head", "10.0.0.10", True), Node("b", "w1", "10.0.0.11", True)
TCP = WriteRate("tcp/eth0 (zero-copy)", 3e9)


def test_missing_nodes_are_a_failure_only_if_a_number_is_required() -> None:
    assert nodes.check_count([HEAD, W1], None).verdict is Verdict.OK
    assert nodes.check_count([HEAD, W1], 2).verdict is Verdict.OK
    missing = nodes.check_count([HEAD, W1], 3)
    assert missing.verdict is Verdict.FAIL
    assert "2 alive: head (10.0.0.10), w1 (10.0.0.11)" in missing.text


def test_another_version_than_on_the_first_node_is_named() -> None:
    first = {"python": "3.12.1", "ray": "2.60.0"}
    assert nodes.check_versions(first, first).verdict is Verdict.OK
    other = nodes.check_versions({"python": "3.12.1", "ray": "2.61.0", "torch": "2.13.0"}, first)
    assert other.verdict is Verdict.FAIL
    assert other.text == "ray 2.61.0, elsewhere 2.60.0; torch 2.13.0, elsewhere missing"


@pytest.mark.parametrize(
    ("ahead_s", "uncertainty_s", "verdict"),
    [
        (0.2, 0.01, Verdict.OK),
        (-3.0, 0.01, Verdict.WARN),
        (3.0, 5.0, Verdict.OK),
        (2 * 86_400.0, 0.01, Verdict.FAIL),
    ],
)
def test_a_clock_is_judged_by_what_is_certain(ahead_s: float, uncertainty_s: float, verdict: Verdict) -> None:
    assert nodes.check_clock(ahead_s, uncertainty_s).verdict is verdict


def test_a_port_that_cannot_be_reached_names_it_and_the_way_out() -> None:
    assert nodes.check_reach("a → b", "10.0.0.11:11000", "").verdict is Verdict.OK
    closed = nodes.check_reach("a → b", "10.0.0.11:11000", "timed out")
    assert closed.verdict is Verdict.FAIL
    assert "10.0.0.11:11000" in closed.text
    assert "--worker-ports" in closed.advice


def test_tcp_between_nodes_with_infiniband_is_a_failure() -> None:
    assert nodes.check_link("a → b", TCP, has_infiniband=False).verdict is Verdict.OK
    assert nodes.check_link("a → b", TCP, has_infiniband=True).verdict is Verdict.FAIL
    rdma = WriteRate("rc_mlx5/mlx5_0:1 (zero-copy)", 48e9)
    assert nodes.check_link("a → b", rdma, has_infiniband=True).verdict is Verdict.OK
    slow = WriteRate("tcp/eth0 (zero-copy)", 1.1e8)
    assert nodes.check_link("a → b", slow, has_infiniband=False).verdict is Verdict.WARN


def test_a_probe_listens_on_the_ports_of_workers_and_reports_unreachable_nodes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        low = min(free.getsockname()[1], 60_000)
    probe = NodeProbe("127.0.0.1", None, PortRange(low, low + 63))
    address, port = probe.listen()
    assert low <= port < low + 32
    assert probe.reach(address, port) == ""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    assert "refused" in probe.reach(address, closed)


def test_only_a_model_that_is_a_path_can_be_missing(tmp_path: Path) -> None:
    probe = NodeProbe("127.0.0.1", None, None)
    assert probe.facts("smollm2").model_trouble == ""
    assert probe.facts(str(tmp_path)).model_trouble == ""
    assert "is not on this node" in probe.facts(str(tmp_path / "none")).model_trouble


def test_a_model_that_this_user_cannot_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    monkeypatch.setattr("os.access", lambda path, mode: path != weights)  # root may read everything
    assert f"cannot read {weights}" in NodeProbe("127.0.0.1", None, None).facts(str(tmp_path)).model_trouble


def test_versions_are_those_of_this_interpreter() -> None:
    versions = versions_of(["ray", "no-such-package"])
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions.keys() == {"python", "ray"}


def test_a_wrong_file_of_settings_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("ray-adress: auto\n")
    assert command.run(["--config", str(file)]) == 2
    assert "did you mean ray-address?" in capsys.readouterr().err


def test_wrong_ports_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--ray-address", "auto", "--worker-ports", "80"]) == 2
    assert "--worker-ports 80 is not LOW-HIGH" in capsys.readouterr().err


def test_a_cluster_that_cannot_be_joined_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--ray-address", "no-such-address"]) == 1
    assert "cannot join no-such-address" in capsys.readouterr().out
