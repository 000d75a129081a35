"""Rows of `router doctor --transports`."""

from __future__ import annotations

from router.command.doctor.end_process import WriteRate
from router.command.doctor.report import Verdict
from router.command.doctor.transports import Cost, TransportCandidate, candidates, check_cost

CMA = TransportCandidate("cma", "tcp,cma")


def cost(path: str) -> Cost:
    return Cost(WriteRate(path, 8 * (64 << 20), written=4_000_000_000), writer_cpu_s=1.0, reader_cpu_s=0.2)


def test_a_row_has_bandwidth_latency_and_cpu_time_of_both_ends() -> None:
    finding = check_cost(CMA, cost("cma/memory (zero-copy)"))
    assert finding.verdict is Verdict.OK
    assert finding.name == "cma"
    for words in ("0.5 GB/s", "64 MiB in 125.0 ms", "0.25 to write, 0.05 to receive", "by cma/memory"):
        assert words in finding.text


def test_a_transport_that_ucx_did_not_choose_has_no_figures() -> None:
    finding = check_cost(CMA, cost("tcp/lo (zero-copy)"))
    assert finding.verdict is Verdict.WARN
    assert "UCX writes by tcp/lo" in finding.text
    assert "GB/s" not in finding.text


def test_infiniband_and_gpus_add_their_transports() -> None:
    plain = [c.name for c in candidates(has_infiniband=False, has_gpu=False)]
    assert plain == ["cma", "tcp", "posix", "sysv"]
    every = list(candidates(has_infiniband=True, has_gpu=True))
    assert [c.name for c in every if c.device == "cpu"] == ["rc", *plain]
    assert [c.name for c in every if c.device != "cpu"] == ["cuda_ipc", "tcp"]
