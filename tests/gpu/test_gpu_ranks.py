"""One model on several GPUs: NCCL between the ranks, in steps and in captured graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.parallel import RendezvousServer
from tests.gpu.driving import gpu_config
from tests.gpu.models import save
from tests.gpu.test_gpu_engine import GREEDY, PROMPTS, expected
from tests.gpu.test_gpu_logits import deviations, drive, requests
from tests.local_rank_processes import LocalRankProcesses
from worker.config import WorkerConfig, WorkerRole

SIZES = [
    pytest.param(
        size, marks=pytest.mark.skipif(torch.cuda.device_count() < size, reason=f"fewer than {size} GPUs")
    )
    for size in (2, 4)
]


@contextmanager
def shared(config: EngineConfig) -> Iterator[ModelRunner]:
    """The leader's runner, on the first GPU; every other rank is a process with a GPU of its own."""
    rendezvous = RendezvousServer(config.tensor_parallel_size)
    rank_processes = LocalRankProcesses()
    rank_processes.start(
        WorkerConfig(worker_id="decode-0", role=WorkerRole.DECODE, model="m", engine=config), rendezvous.place
    )
    try:
        group = rendezvous.join_as_first_rank(
            torch.device("cuda"), timeout_s=60.0, failure=rank_processes.trouble
        )
        runner = ModelRunner(config, communicator=group)
        yield runner
        runner.close()
    finally:
        rank_processes.stop()


def generate(
    config: EngineConfig, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[list[int]]:
    with shared(config) as runner:
        engine = Engine(config, runner=runner)
        work = [Request(id=i, prompt=list(prompt), sampling=sampling) for i, prompt in enumerate(prompts)]
        for request in work:
            engine.submit(request)
        while engine.has_work:
            assert not engine.step().failed
        engine.check_pages()
        return [list(request.output) for request in work]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("overlap", [False, True])
def test_in_float32_answers_equal_transformers(size: int, overlap: bool, tmp_path: Path) -> None:
    model = save("llama-64", tmp_path).cuda()
    config = gpu_config(
        tmp_path,
        dtype="float32",
        attention_backend="torch",
        chunk_budget=64,
        overlap=overlap,
        tensor_parallel_size=size,
    )
    assert generate(config, PROMPTS, GREEDY) == [expected(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("graphs", [0, 8], ids=["eager", "graphs"])
def test_logits_are_near_float32(size: int, graphs: int, tmp_path: Path) -> None:
    model = save("llama-128", tmp_path)
    config = gpu_config(
        tmp_path, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=20 * graphs, tensor_parallel_size=size
    )
    work = requests()
    with shared(config) as runner:
        drive(runner, work, chunk=48)
    ours, theirs = deviations(model, work)
    assert ours < 3 * theirs + 1e-3, f"{ours:.5f} against {theirs:.5f}"


@pytest.mark.parametrize("size", SIZES)
def test_overlap_and_graphs_change_no_token(size: int, tmp_path: Path) -> None:
    save("llama-128", tmp_path)
    config = {"chunk_budget": 64, "tensor_parallel_size": size}
    config |= {"cuda_graph_max_batch": 8, "cuda_graph_max_tokens": 64}
    plain = generate(gpu_config(tmp_path, **config), PROMPTS, GREEDY)
    assert generate(gpu_config(tmp_path, **config, overlap=True), PROMPTS, GREEDY) == plain
