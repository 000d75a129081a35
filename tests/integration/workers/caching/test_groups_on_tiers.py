"""Windows and recurrent states on tiers, and from another worker: the tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.models.kinds_of_kv import mamba, other_heads, states, windows
from tests.integration.tiny_cluster import Link, pair, work, worker
from tests.integration.workers.caching.test_pulled_prefixes import pull, share
from tests.integration.workers.caching.test_tiers import copied, flip_bits, run, stats
from tests.unit.tiny import VOCAB
from worker.config import TierConfig, WorkerRole

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
PROMPTS = [[(seed * 31 + i * i * 7) % 97 for i in range(62)] for seed in range(4)]
TURN = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module", params=[windows, other_heads, states, mamba])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    torch.manual_seed(0)
    model = request.param(**SHAPE).eval()
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, Oracle(model)


async def answered(link: Link, oracle: Oracle, prompt: list[int]) -> dict[str, int]:
    """Check an answer; tokens of the prompt that came from tiers."""
    tokens, sources = await run(link, prompt)
    assert tokens == oracle(prompt, 8)
    return sources


async def test_prefixes_come_up_from_a_workers_tiers_and_from_another_workers(
    model: tuple[Path, Oracle], tmp_path: Path
) -> None:
    """And damaged files never become tokens."""
    folder, oracle = model
    turns = [[*prompt, *oracle(prompt, 8), *TURN] for prompt in PROMPTS]
    tiers = TierConfig(host_bytes=1 << 20, disk_dir=tmp_path, second_tier_bytes=1 << 24)
    pool = {"num_pages": 60, "max_model_len": 100, "num_state_slots": 4, "tiers": tiers}
    async with pair(folder, prefill=pool) as workers:
        for prompt in PROMPTS:
            await answered(workers.prefill, oracle, prompt)
        for turn in turns:
            assert (await answered(workers.prefill, oracle, turn))["host"] > 0
        job = work(turns[0])
        await pull(workers, job, num_tokens=68)
        await share(workers, job)
        started = await workers.decode.next(job.request_id, "started")
        assert started.promoted["peer"] == started.cached_tokens >= 60
        assert (await workers.decode.tokens(job.request_id))[0] == oracle(turns[0], 8)
        await workers.all_pages_back()
        pages = (await stats(workers.prefill))["host"].demoted
        await copied(workers.prefill, "disk", pages)
    settings = {key: value for key, value in pool.items() if key != "tiers"}
    name = "prefill-0"
    async with worker(folder, WorkerRole.DECODE, None, name=name, tiers=tiers, **settings) as link:
        assert (await answered(link, oracle, turns[0]))["disk"] > 0
    flip_bits(tmp_path)
    async with worker(folder, WorkerRole.DECODE, None, name=name, tiers=tiers, **settings) as link:
        assert not await answered(link, oracle, turns[1])
        found = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert found.tiers.faults["digest"] + found.tiers.faults["load"] > 0
