"""A worker with several tensor-parallel ranks gives the tokens of transformers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from engine.errors import RankLost
from engine.executor.runner import ModelRunner
from engine.model_config.errors import UnsupportedModel
from engine.parallel import RendezvousServer
from rpc.baton.v1 import worker_pb2
from tests.integration import tiny_cluster
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, status_of, work, worker
from tests.integration.workers.test_mixed_worker import prompt, run
from tests.local_rank_processes import LocalRankProcesses
from tests.processes import starting
from tests.unit.tiny import make_config
from worker.config import WorkerConfig, WorkerRole


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for each other thousands of times, which takes its time where they share a core."""
    monkeypatch.setattr(tiny_cluster, "PATIENCE_S", 120.0)


def shared(folder: Path, ranks: int = 2, **engine: Any) -> Any:
    return worker(folder, WorkerRole.DECODE, None, tensor_parallel_size=ranks, **engine)


def rank_processes_of(link: Link) -> LocalRankProcesses:
    rank_processes = link.host._rank_processes
    assert isinstance(rank_processes, LocalRankProcesses)
    return rank_processes


@pytest.mark.parametrize(("ranks", "overlap"), [(2, False), (2, True), (4, False)])
async def test_chunks_batches_and_cached_prefixes_give_the_tokens_of_transformers(
    folder: Path, oracle: Oracle, ranks: int, overlap: bool
) -> None:
    """On four ranks, two of them hold each key head."""
    async with shared(folder, ranks, overlap=overlap) as link:
        for _ in range(2):  # the second time from the cache
            jobs = [work(prompt(length, seed=length), max_tokens=10) for length in (1, 5, 33, 70, 100)]
            outputs = await asyncio.gather(*(run(link, job) for job in jobs))
            assert outputs == [oracle(list(job.prompt), 10) for job in jobs]
        await link.all_pages_back()
        stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.cache_hit_tokens > 100


@pytest.mark.parametrize("overlap", [False, True])
async def test_preempted_requests_are_computed_again(
    folder: Path, oracle: Oracle, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    async with shared(folder, num_pages=24, overlap=overlap) as link:
        jobs = [work(prompt(length, seed=length), max_tokens=24) for length in (20, 25, 30, 35)]
        outputs = await asyncio.gather(*(run(link, job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 24) for job in jobs]
        stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.preemptions > 0


async def test_penalties_and_seeded_draws_are_those_of_one_process(folder: Path) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "seed": 11, "frequency_penalty": 0.4, "logprobs": 3}
    answers = []
    for ranks in (1, 2):
        async with shared(folder, ranks) as link:
            answers.append(await run(link, work(prompt(40), max_tokens=30, **settings)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("busy", [False, True])
async def test_a_rank_that_is_killed_takes_its_worker_with_it(folder: Path, busy: bool) -> None:
    async with shared(folder) as link:
        if busy:
            job = work(prompt(20), max_tokens=100)
            await link.submit(job)
            await link.next(job.request_id, "started")
        (rank,) = rank_processes_of(link).processes
        assert rank.pid
        os.kill(rank.pid, signal.SIGKILL)
        async with asyncio.timeout(30.0):
            while not link.deaths:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if busy:
            assert link.reader is not None
            assert await status_of(link.reader) is grpc.StatusCode.UNAVAILABLE


def lead_and_wait(config: WorkerConfig, place: Connection) -> None:
    """A leader with nothing to do, as a process of its own."""
    rendezvous = RendezvousServer(config.engine.tensor_parallel_size)
    place.send(rendezvous.place)
    group = rendezvous.join_as_first_rank(torch.device("cpu"), timeout_s=20.0, failure=str)
    runner = ModelRunner(config.engine, communicator=group)
    place.send(runner.kv.num_pages)
    time.sleep(600)


def test_ranks_end_with_a_leader_that_is_killed(folder: Path) -> None:
    engine = make_config(folder, tensor_parallel_size=4)
    config = WorkerConfig(worker_id="decode-0", role=WorkerRole.DECODE, model="tiny", engine=engine)
    context = starting()
    ours, theirs = context.Pipe()
    leader = context.Process(target=lead_and_wait, args=(config, theirs), daemon=True)
    leader.start()
    rank_processes = LocalRankProcesses()
    rank_processes.start(config, ours.recv())
    assert ours.recv() == 64
    leader.kill()
    for rank in rank_processes.processes:
        rank.join(30.0)
    assert [rank.exitcode for rank in rank_processes.processes] == [0, 0, 0]


async def test_a_rank_that_never_comes_fails_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.local_rank_processes.run_rank", time.sleep
    )  # which does not take what it is given
    with pytest.raises(RankLost, match="rank 1 ended"):
        async with shared(folder):
            pass


async def test_a_model_that_cannot_be_shared_out_fails_the_start(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="cannot be shared equally by 3 ranks"):
        async with shared(folder, ranks=3):
            pass


async def test_ranks_score_a_prompt_together(folder: Path, oracle: Oracle) -> None:
    """Only rank 0 has all columns of the logits; the others compute their part of the same blocks."""
    async with shared(folder, 2, chunk_budget=48) as link:
        jobs = [work(prompt(length, seed=length), max_tokens=6, prompt_logprobs=2) for length in (5, 33, 100)]
        for job in jobs:
            await link.submit(job)
        for job in jobs:
            found: list[float] = []
            await link.next(job.request_id, "started")
            while len(found) < len(job.prompt) - 1:
                scored = await link.next(job.request_id, "prompt_logprobs")
                assert scored.position == 1 + len(found)
                found += scored.logprobs
            with torch.inference_mode():
                rows = oracle.model(torch.tensor([list(job.prompt)])).logits[0].log_softmax(-1)
            right = [float(row[token]) for row, token in zip(rows, job.prompt[1:], strict=False)]
            assert found == pytest.approx(right, abs=1e-4)
            assert (await link.tokens(job.request_id))[0] == oracle(list(job.prompt), 6)
        await link.all_pages_back()
