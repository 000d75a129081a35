"""What `make cluster-demo` says where it cannot run, and how it judges what it saw."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from scripts import cluster_demo
from scripts.cluster import machines
from scripts.cluster.clients import Stream
from scripts.cluster.three_nodes import DEPLOY, Worker, command_with, commands


def test_without_root_the_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"cluster-demo: .* need root: run it with sudo"):
        cluster_demo.main()


def test_missing_packages_are_named_in_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool, path: None if tool in {"sshd", "rsync", "ip"} else tool)
    assert machines.why_not().endswith("apt-get install iproute2 openssh-server rsync")


def test_the_node_that_is_cut_has_answers_and_not_the_router() -> None:
    workers = {
        "decode-0": Worker("head", 10, 4, "ready"),
        "decode-1": Worker("w1", 11, 2, "ready"),
        "prefill-0": Worker("w2", 12, 0, "ready"),
        "decode-2": Worker("", 0, 0, "away"),
    }
    assert cluster_demo.busiest(workers) == "decode-1"
    del workers["decode-1"]
    with pytest.raises(cluster_demo.Failed, match="on a node other than the head"):
        cluster_demo.busiest(workers)


def test_an_operators_command_is_found_by_its_words() -> None:
    assert command_with("ray up -y deploy") == "ray up -y deploy/cluster.yaml"
    with pytest.raises(ValueError, match="unpack"):
        command_with("ray")
    assert len(commands(DEPLOY / "cluster.yaml")) == 12


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [(Stream("other", [1.0]), "differ.*The night train"), (Stream("", [], "503"), "The night train: 503")],
)
def test_an_answer_that_differs_or_breaks_off_fails_the_demo(spoilt: Stream, reason: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    demo = cluster_demo.Demo(console)
    before = [Stream(title, [1.0, 1.5, 6.0]) for title in cluster_demo.TITLES]
    demo.compare(before, before)
    assert "6 answers are complete and identical" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "6 paused, for at most 4.5 s" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(cluster_demo.Failed, match=reason):
        demo.compare(before, [*before[:-1], spoilt])
