"""Gated delta nets on the GPU, in the shape of Qwen3.5's and Qwen3-Next's heads, against plain torch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.core.request_state import NO_SLOT
from engine.core.sampling_params import SamplingParams
from engine.kv.cache.state_pool import StatePool
from engine.loop.engine import Engine
from engine.mixers.recurrence.torch_recurrence import TorchRecurrence
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.modeling.layers.recurrent import RecurrentWeights
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import VOCAB, save
from tests.oracle import Oracle, speculate
from tests.unit.engine.mixers.recurrence.test_triton_recurrence import batch_of, verified

SPEC = RecurrentSpec(layers=frozenset({0}), key_heads=4, value_heads=8, key_dim=128, value_dim=128, kernel=4)
SLOTS = 12
N = NO_SLOT
CASES: dict[str, list[tuple[int, ...]]] = {
    "decodes": [(1, 3, 3, N, 0), (1, N, 5, N, 0), (1, 1, 2, N, 0)],
    "a long prompt": [(3000, N, 4, N, 0)],
    "checkpoints": [(1000, 2, 3, 6, 800), (64, 4, 4, 7, 64), (2, 5, 5, 8, 1)],
    "chunks and decodes": [(65, 1, 1, 2, 64), (5, N, 3, N, 0), (1, 4, 4, N, 0), (1, N, 5, N, 0)],
    "verified": [(5, N, 3, N, 0), *verified(5, 4, 4), (1, 1, 1, N, 0), *verified(3, N, 2)],
}


def pool(dtype: torch.dtype) -> StatePool:
    size = -(-SPEC.state_bytes(dtype.itemsize) // 256) * 256
    made = StatePool(torch.zeros(SLOTS + 1, size, dtype=torch.uint8, device="cuda"), SPEC, dtype)
    torch.manual_seed(0)
    for part in made.layer(0):
        part.copy_(torch.randn(part.shape) * 0.1)
    return made


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("requests", CASES.values(), ids=CASES)
def test_the_kernels_compute_what_plain_torch_does(requests: list[tuple[int, ...]]) -> None:
    """The oracle computes in float32 from the same 16-bit inputs."""
    from engine.mixers.recurrence.triton_recurrence import TritonRecurrence

    batch = batch_of(requests)
    batch = replace(batch, rows=batch.rows.cuda())
    rows = len(batch.input_ids)
    mixed = torch.randn(rows, SPEC.mixed_size + 64, device="cuda").bfloat16()[:, : SPEC.mixed_size]
    decays = -torch.rand(rows, SPEC.value_heads, device="cuda") * 0.2
    beta = torch.rand(rows, SPEC.value_heads, device="cuda")
    kernel = (torch.randn(SPEC.mixed_size, 1, SPEC.kernel, device="cuda") * 0.5).bfloat16()
    ours, theirs = pool(torch.bfloat16), pool(torch.float32)
    for mine, wanted in zip(ours.layer(0), theirs.layer(0), strict=True):
        wanted.copy_(mine)
    kernels, oracle = TritonRecurrence(ours, max_verified=16), TorchRecurrence(theirs)
    kernels.prepare(batch)
    oracle.prepare(batch)

    expected = oracle.recur(0, mixed.float(), decays, beta, RecurrentWeights(kernel.float()))
    result = kernels.recur(0, mixed, decays, beta, RecurrentWeights(kernel))

    if any(len(r) > 5 for r in requests):
        for recurrence in (kernels, oracle):
            recurrence.keep(torch.tensor([3, 1], device="cuda"))
    assert error(result, expected) < 8e-3
    for mine, wanted in zip(ours.layer(0), theirs.layer(0), strict=True):
        assert error(mine[:SLOTS], wanted[:SLOTS]) < 8e-3
    again = pool(torch.bfloat16)
    kernels = TritonRecurrence(again, max_verified=16)
    kernels.prepare(batch)
    assert torch.equal(kernels.recur(0, mixed, decays, beta, RecurrentWeights(kernel)), result)
    if not any(len(r) > 5 for r in requests):
        assert torch.equal(again.layer(0)[0], ours.layer(0)[0])


@pytest.mark.parametrize("graphs", [None, 0, 32], ids=["float32", "eager", "graphs"])
def test_states_follow_the_drafts_that_were_right(graphs: int | None, tmp_path: Path) -> None:
    """`graphs` None: in float32, where answers are the same; else in bfloat16, where drafts of the answers
    without drafts would soon be wrong if they left another state."""
    prompts = [random_tokens(n, seed=n) for n in (5, 100, 33, 300, 2)]
    save("qwen3.5", tmp_path)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    exact: dict[str, object] = {}
    if graphs is None:
        exact = {"dtype": "float32", "attention_backend": "torch"}
    most = SpeculationConfig(num_draft_tokens=4, adaptive=False)
    exact |= {"chunk_budget": 64, "overlap": True, "cuda_graph_max_batch": graphs or 0}
    plain = generate(gpu_config(tmp_path, **exact), prompts, sampling)
    rng = random.Random(0)
    for acceptance in (1.0, 0.6):
        engine = Engine(gpu_config(tmp_path, speculation=most, **exact))
        speculate(engine, most, lambda r, p=acceptance: [Oracle(plain[r.id], VOCAB, p, rng)])
        requests = [Request(id, prompt, sampling) for id, prompt in enumerate(prompts)]
        for request in requests:
            engine.submit(request)
        while engine.has_work:
            engine.step()
        drafts = engine.stats().drafts
        if graphs is None:
            assert [request.output for request in requests] == plain
        assert drafts.accepted > 0.6 * acceptance**4 * drafts.drafted
        engine.close()
