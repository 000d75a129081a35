"""Settings that start, with a warning."""

from __future__ import annotations

import pytest

from common.cpu_times import CpuTimes
from router.cluster.worker_config import plan_warnings
from router.cluster.worker_config.machine import Machine
from router.cluster.worker_config.plan_warnings import busy_cores, warnings_of
from router.config.flags.command_line import parse

CPU = Machine(device="cpu", memory_bytes=8 << 30, cpus=2, host="127.0.0.1")
GPU = Machine(device="cuda", memory_bytes=80 << 30, cpus=2, host="127.0.0.1")


def warnings(flags: str, machine: Machine = CPU) -> list[str]:
    return warnings_of(parse(["m", *flags.split()]), machine)


@pytest.mark.parametrize(
    "flag", ["--cuda-graph-max-bs", "--cuda-graph-max-tokens", "--decode-cuda-graph-max-bs"]
)
def test_cuda_graphs_on_a_cpu_are_a_warning(flag: str) -> None:
    [warning] = warnings(f"{flag} 160")
    assert f"{flag} 160 has no effect" in warning
    assert not warnings(f"{flag} 0")
    assert not warnings(f"{flag} 160", GPU)


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_chunks_below_128_tokens_are_a_warning(machine: Machine) -> None:
    for flags in ("--chunked-prefill-size 112", "--long-prefill-token-threshold 112"):
        [warning] = warnings(flags, machine)
        assert f"{flags}: below 128 tokens" in warning
    both = "--mode disagg --prefill-chunked-prefill-size 64 --decode-chunked-prefill-size 128"
    assert [w.split(":")[0] for w in warnings(both)] == ["--prefill-chunked-prefill-size 64"]
    for flags in ("", "--chunked-prefill-size 128", "--chunked-prefill-size -1", "--preset roseinfer"):
        assert not warnings(flags, machine)
    assert not warnings("--long-prefill-token-threshold 0 --preset vllm", machine)


def test_more_cores_for_a_worker_than_the_machine_has_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_warnings, "usable_cores", lambda: 2)
    [warning] = warnings("--worker-cpus 64")
    assert "--worker-cpus 64: this machine has 2" in warning
    assert not warnings("--worker-cpus 2")
    assert not warnings("--worker-cpus 64 --ray-address auto"), "the cluster's machines may have them"


def test_other_programs_on_the_cores_are_a_warning() -> None:
    before = CpuTimes(at=1.0, cores=2, busy=0.0, own=0.0)
    [warning] = busy_cores(before, CpuTimes(at=2.0, cores=2, busy=1.8, own=0.5))
    assert "other programs use 1.3 of 2 cores" in warning
    assert not list(busy_cores(before, CpuTimes(at=2.0, cores=2, busy=0.8, own=0.5)))
    assert not list(busy_cores(before, CpuTimes(at=1.05, cores=2, busy=0.1, own=0.0))), "too short to tell"
    assert not list(busy_cores(None, None))
