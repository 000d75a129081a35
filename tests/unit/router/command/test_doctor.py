"""What the doctor makes of what it finds, and how it says so."""

from __future__ import annotations

import resource
import socket
from dataclasses import replace

import pytest

from common.cpu_times import CpuTimes
from router.command.doctor import gpus, links, machine, software
from router.command.doctor.command import run
from router.command.doctor.end_process import WriteRate
from router.command.doctor.gpus import Gpu, Pair
from router.command.doctor.report import Finding, Verdict, exit_status, fail, lines_of, ok, warn

H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 << 30, 55e9)


def verdicts(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in findings}


def test_other_programs_on_the_cores_are_a_warning() -> None:
    before = CpuTimes(at=1.0, cores=2, busy=0.0, own=0.0)
    assert machine.check_cores(2, before, CpuTimes(2.0, 2, 0.2, 0.1)).verdict is Verdict.OK
    busy = machine.check_cores(2, before, CpuTimes(2.0, 2, 1.6, 0.1))
    assert busy.verdict is Verdict.WARN
    assert "other programs use 1.5" in busy.text
    assert machine.check_cores(2, None, None).verdict is Verdict.WARN


def test_a_failure_decides_the_exit_status_and_a_warning_does_not() -> None:
    assert exit_status([ok("a", ""), warn("b", "", "c")]) == 0
    assert exit_status([ok("a", ""), fail("b", "", "c")]) == 1


def test_a_row_fits_a_terminal_and_ends_with_what_to_do() -> None:
    lines = list(lines_of(fail("ports", "taken " * 40, "choose another one")))
    assert lines[0].startswith("FAIL ports ")
    assert max(map(len, lines)) <= 110
    assert lines[-1].strip() == "→ choose another one"


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 11), Verdict.OK), ((3, 12), Verdict.OK), ((3, 10), Verdict.WARN)]
)
def test_pythons_that_were_not_tried_are_named(version: tuple[int, int], verdict: Verdict) -> None:
    assert software.check_python(version).verdict is verdict


def test_a_missing_package_fails_and_an_untried_one_warns() -> None:
    known = {"torch": ("2.11", "2.13"), "ray": ("2.60",), "numpy": ("2.",)}
    found = {"torch": "2.13.0+cpu", "ray": None, "numpy": "1.26.4"}
    findings = list(software.check_packages(known, found))
    assert verdicts(findings) == {"ray": Verdict.FAIL, "numpy": Verdict.WARN, "packages": Verdict.OK}
    assert findings[-1].text == "torch 2.13.0+cpu"


def test_a_container_with_little_shared_memory_cannot_run_ray() -> None:
    assert machine.check_shm(64 << 20).verdict is Verdict.FAIL
    assert machine.check_shm(8 << 30).verdict is Verdict.OK


def test_few_open_files_are_a_warning() -> None:
    assert machine.check_files(1024).verdict is Verdict.WARN
    assert machine.check_files(resource.RLIM_INFINITY).verdict is Verdict.OK


def test_locked_memory_matters_to_infiniband_alone() -> None:
    assert machine.check_memlock(8 << 20, has_infiniband=True).verdict is Verdict.FAIL
    assert machine.check_memlock(8 << 20, has_infiniband=False).verdict is Verdict.OK
    assert machine.check_memlock(resource.RLIM_INFINITY, has_infiniband=True).verdict is Verdict.OK


def test_a_port_in_use_is_reported_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = {"--http-port": taken.getsockname(), "--grpc-port": ("127.0.0.1", 0)}
        findings = [f for f in machine.check(addresses) if f.name == "ports"]
    assert [f.verdict for f in findings] == [Verdict.FAIL, Verdict.OK]
    assert "--http-port" in findings[0].text


def test_an_old_gpu_is_a_warning() -> None:
    assert gpus.check_gpu(H200).verdict is Verdict.OK
    assert gpus.check_gpu(replace(H200, capability=(7, 5))).verdict is Verdict.WARN


def test_nvlink_is_distinguished_from_pcie_and_from_no_peer_access_by_its_speed() -> None:
    assert "NVLink" in gpus.check_pair(Pair(0, 1, True, 395e9)).text
    assert "PCIe" in gpus.check_pair(Pair(0, 1, True, 50e9)).text
    assert gpus.check_pair(Pair(0, 1, False, 20e9)).verdict is Verdict.WARN


def test_memory_that_no_other_process_can_write_is_a_failure() -> None:
    assert gpus.check_allocator("expandable_segments:True,max_split_size_mb:64").verdict is Verdict.FAIL
    assert gpus.check_allocator("").verdict is Verdict.OK


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_failure() -> None:
    assert verdicts(list(gpus.check([], [], is_wanted=True))) == {"gpu": Verdict.FAIL}


def test_kv_between_gpus_that_goes_by_way_of_the_host_is_a_failure() -> None:
    fast, slow = WriteRate("cuda_ipc/cuda (zero-copy)", 247e9), WriteRate("tcp/lo (software emulation)", 2e9)
    assert links.check_gpu_link("gpu 0 → 1", fast, H200, peer_access=True).verdict is Verdict.OK
    failed = links.check_gpu_link("gpu 0 → 1", slow, H200, peer_access=True)
    assert failed.verdict is Verdict.FAIL
    assert "2.0 GB/s" in failed.text
    assert "tcp/lo" in failed.text
    assert "cuda_ipc" in failed.advice


def test_gpus_without_peer_access_can_do_no_better() -> None:
    link = WriteRate("cuda_copy (pipeline)", 8e9)
    assert links.check_gpu_link("gpu 0 → 1", link, H200, peer_access=False).verdict is Verdict.WARN


def test_slow_shared_memory_is_a_warning() -> None:
    assert links.check_host_link(WriteRate("cma/memory (zero-copy)", 5e9)).verdict is Verdict.OK
    assert links.check_host_link(WriteRate("tcp/lo (zero-copy)", 2e8)).verdict is Verdict.WARN


def test_every_row_that_is_not_ok_has_advice() -> None:
    findings = [
        software.check_python((3, 9)),
        machine.check_shm(0),
        machine.check_files(10),
        gpus.check_pair(Pair(0, 1, False, 1e9)),
        links.check_host_link(WriteRate("", 1.0)),
        *gpus.check([], [], is_wanted=True),
    ]
    assert all(finding.advice for finding in findings)


def test_the_routers_own_ports_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, str, int]] = []
    monkeypatch.setattr("router.command.doctor.machine.check_free", lambda *given: checked.append(given))
    monkeypatch.setattr("router.command.doctor.command.software.check", lambda **_: ())
    monkeypatch.setattr("router.command.doctor.command.links.check", lambda *_: ())
    ports = ("--http-port", "31730", "--grpc-port", "31731", "--admin-port", "31732", "--host", "0.0.0.0")
    run(["--device", "cpu", *ports])
    assert checked == [
        ("--http-port", "0.0.0.0", 31730),
        ("--grpc-port", "0.0.0.0", 31731),
        ("--admin-port", "127.0.0.1", 31732),
    ]
