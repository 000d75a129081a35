"""Settings that start, with a warning."""

from __future__ import annotations

import pytest

from router.config.flags.command_line import parse
from router.worker_config.machine import Machine
from router.worker_config.plan_warnings import warnings_of

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
