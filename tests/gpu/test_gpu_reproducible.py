"""With --reproducible on a GPU, logits have the same bits however the tokens are computed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import UNIFORM, EngineConfig, SpeculationConfig
from engine.core.plan import Chunk
from engine.core.request import Request
from engine.core.sampling_params import PromptLogprobs, SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from tests.gpu.driving import Forced, gpu_config, random_tokens
from tests.gpu.models import VOCAB, save
from tests.gpu.test_gpu_logits import deviations, drive
from tests.gpu.test_gpu_logits import requests as some_requests
from tests.oracle import Oracle, speculate

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs sm_90"
)

MODELS = [
    "llama-64",
    "llama-128",
    "qwen2",
    "qwen3",
    "qwen3-experts",
    "mixtral",
    "glm4-experts",
    "gpt2",
]
ROWS = (1, 2, 5, 16, 17, 33, 64, 65, 129, 300, 1000, 3000)


def uniform_config(folder: Path, **changes: object) -> EngineConfig:
    return gpu_config(folder, attention_backend=UNIFORM, **changes)


# --------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("features", "columns"), [(1, 256), (384, 256), (6144, 4096), (4096, 14_336), (512, 2056), (32_000, 64)]
)
def test_products_of_a_row_have_the_same_bits_among_any_number(
    features: int, columns: int, dtype: torch.dtype
) -> None:
    from engine.modeling.layers.linear.uniform_gpu import UniformMatrix

    generator = torch.Generator("cuda").manual_seed(1)
    x, weight = (
        torch.randn(n, columns, generator=generator, device="cuda").to(dtype) for n in (ROWS[-1], features)
    )
    bias = torch.randn(features, generator=generator, device="cuda").to(dtype)
    exact = x.double() @ weight.double().t() + bias.double()
    for results in (dtype, torch.float32):
        matrix = UniformMatrix(weight, results)
        whole = matrix.product(x, bias)
        error = (whole - exact).norm() / exact.norm()
        assert error < (1e-5 if results == torch.float32 else 3e-3)
        for rows in ROWS:
            out = matrix.product(x[-rows:], bias)
            assert torch.equal(out, whole[-rows:]), rows
    matrix = UniformMatrix(weight, dtype)
    assert torch.equal(matrix.product(x[5:9], None), matrix.product(x, None)[5:9])


@pytest.mark.parametrize("vocab", [512, 50_257])
def test_logarithms_of_sums_have_the_bits_of_the_sampler(vocab: int) -> None:
    from engine.kernels.sampling.totals import log_totals
    from engine.sampling.sampler import Sampler

    logits = (torch.randn(150, vocab, device="cuda") * 3).bfloat16()
    whole = log_totals(logits)
    assert torch.allclose(whole, logits.float().logsumexp(-1), atol=1e-5)
    for rows in (1, 2, 64):
        assert torch.equal(log_totals(logits[7 : 7 + rows]), whole[7 : 7 + rows])
    sampler = Sampler(
        vocab_size=vocab, eos_token_ids=(), max_requests=150, max_rows=150, device=torch.device("cuda")
    )
    sampling = SamplingParams(max_tokens=4, logprobs=0)
    requests = [Request(slot, [1], sampling, slot=slot) for slot in range(150)]
    chunks = [Chunk(request, request.slot, 0, 1, 0) for request in requests]
    sampled = sampler.sample(logits.clone(), chunks)
    assert sampled.logprobs is not None
    found = logits.gather(1, sampled.tokens[:, None]).float()[:, 0] - whole
    assert torch.equal(found, sampled.logprobs.chosen)


@pytest.mark.parametrize(("experts", "per_token"), [(8, 2), (128, 8)])
def test_experts_of_a_row_have_the_same_bits_among_any_number(experts: int, per_token: int) -> None:
    from engine.kernels.experts.routing import route_tokens
    from engine.kernels.experts.weighted_sum import weighted_sum
    from engine.kernels.matmul.grouped_matmul import grouped_matmul

    generator = torch.Generator("cuda").manual_seed(2)
    x = torch.randn(ROWS[-1], 512, generator=generator, device="cuda").bfloat16()
    logits = torch.randn(ROWS[-1], experts, generator=generator, device="cuda")
    up = torch.randn(experts, 384, 512, generator=generator, device="cuda").bfloat16()
    down = torch.randn(experts, 512, 384, generator=generator, device="cuda").bfloat16()

    def computed(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        part = x[rows].contiguous()
        live = torch.tensor([len(part)], dtype=torch.int32, device="cuda")
        totals = torch.zeros(experts, dtype=torch.int64, device="cuda")
        options: dict[str, Any] = {"sigmoid": False, "normalized": True, "scale": 1.0}
        routing = route_tokens(
            logits[rows].contiguous(), None, None, live, totals, per_token=per_token, **options
        )
        grouped = {"starts": routing.starts, "per_token": per_token}
        inner = grouped_matmul(part, up, x.dtype, order=routing.order, **grouped)
        outer = grouped_matmul(inner, down, x.dtype, starts=routing.starts)
        return routing.weights, weighted_sum(outer, routing.places, routing.weights)

    whole = computed(slice(0, None))
    for rows in ROWS:
        for ours, among in zip(computed(slice(7, 7 + rows)), whole, strict=True):
            assert torch.equal(ours, among[7 : 7 + rows]), rows


# --------------------------------------------------------------------------------------- engines


@pytest.mark.parametrize("graphs", [0, 8], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_near_float32(name: str, graphs: int, tmp_path: Path) -> None:
    model = save(name, tmp_path)
    config = uniform_config(tmp_path, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=20 * graphs)
    work = some_requests()
    drive(ModelRunner(config), work, chunk=48)
    ours, theirs = deviations(model, work)
    assert ours < 3 * theirs + 1e-3, f"{name}: {ours:.5f} against {theirs:.5f}"


def forced(page_size: int, count: int) -> list[Forced]:
    """Contexts of up to 1,000 tokens, more than one split, in pages out of order."""
    each, found = -(-1024 // page_size), []
    for slot in range(count):
        total = 40 + 960 * (slot + 1) // count
        order = random.Random(slot).sample(range(slot * each, (slot + 1) * each), each)
        found.append(Forced(random_tokens(total, seed=slot), total - 12, slot, order))
    return found


def logits_of(
    config: EngineConfig, count: int, run: Callable[[ModelRunner, list[Forced]], None]
) -> torch.Tensor:
    runner = ModelRunner(config)
    work = forced(config.page_size, count)
    run(runner, work)
    runner.close()
    return torch.stack([each.logits[position] for each in work for position in sorted(each.logits)])


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits_in_any_step(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    count = 6

    def config(**more: object) -> EngineConfig:
        page_size = int(str(more.get("page_size", 16)))
        return uniform_config(tmp_path, num_pages=count * -(-1024 // page_size), **more)

    def alone(runner: ModelRunner, work: list[Forced]) -> None:
        for each in work:
            drive(runner, [each], chunk=2048)

    expected = logits_of(config(), count, alone)
    assert expected.isfinite().all()
    ways: dict[str, tuple[EngineConfig, Callable[[ModelRunner, list[Forced]], None]]] = {
        f"chunks of {chunk}": (config(), lambda runner, work, chunk=chunk: drive(runner, work, chunk))
        for chunk in (11, 33, 500, 2048)
    }
    graphs = {"cuda_graph_max_batch": 8}
    ways |= {
        "pages of 64": (config(page_size=64), lambda runner, work: drive(runner, work, 100)),
        "pages of 1": (config(page_size=1), lambda runner, work: drive(runner, work, 100)),
        "graphs": (config(**graphs), lambda runner, work: drive(runner, work, 2048)),
        "graphs, alone": (config(**graphs), alone),
        "piecewise": (
            config(cuda_graph_max_batch=4, cuda_graph_max_tokens=256),
            lambda runner, work: drive(runner, work, 30),
        ),
    }
    for way, (changed, run) in ways.items():
        found = logits_of(changed, count, run)
        differ = int((found.view(torch.int32) != expected.view(torch.int32)).any(dim=1).sum())
        assert not differ, f"{name}, {way}: {differ} of {len(found)} rows differ"


PROMPTS = [random_tokens(length, seed=length) for length in (5, 100, 33, 64, 700, 1, 17, 530)]
ASKED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=3, logprobs=20)
Answers = list[tuple[list[int], list[Any]]]


def answered(engine: Engine, prompts: Sequence[Sequence[int]], sampling: SamplingParams = ASKED) -> Answers:
    """Tokens and log-probabilities, with those of prompts before them."""
    asked = [Request(id=i, prompt=list(prompt), sampling=sampling) for i, prompt in enumerate(prompts)]
    found: dict[int, list[Any]] = {request.id: [] for request in asked}
    for request in asked:
        engine.submit(request)
    while engine.has_work:
        output = engine.step()
        assert not output.failed
        for request, numbers in output.outputs:
            assert isinstance(numbers, PromptLogprobs)
            found[request.id] += numbers.logprobs
        for token in output.tokens:
            found[token.request.id].append(token.logprobs)
    return [(list(request.output), found[request.id]) for request in asked]


@pytest.mark.parametrize("name", ["llama-128", "qwen2-windows", "qwen3-experts"])
def test_answers_have_the_same_bits_in_any_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(name, tmp_path)
    plain = Engine(uniform_config(tmp_path))
    alone = [answered(plain, [prompt])[0] for prompt in PROMPTS]
    assert answered(plain, PROMPTS) == alone, "prefix hits"
    longer = [[*prompt, *tokens] for prompt, (tokens, _) in zip(PROMPTS, alone, strict=True)]
    scored = answered(plain, longer, SamplingParams(max_tokens=1, prompt_logprobs=1, ignore_eos=True))
    for (_, as_prompt), (tokens, as_answer) in zip(scored, alone, strict=True):
        assert as_prompt[-len(tokens) - 1 : -1] == [each.logprob for each in as_answer]
    plain.close()
    drafting = SpeculationConfig(num_draft_tokens=4, adaptive=False)
    ways: dict[str, dict[str, Any]] = {
        "overlap and graphs": {"overlap": True, "cuda_graph_max_batch": 8, "cuda_graph_max_tokens": 64},
        "odd chunks": {"chunk_budget": 37, "page_aligned_chunks": False, "page_size": 8},
        "no cache": {"radix_cache": False, "chunk_budget": None},
        "right drafts": {"speculation": drafting},
        "drafts and graphs": {"speculation": drafting, "cuda_graph_max_batch": 40, "overlap": True},
        "drafts in chunks": {"speculation": drafting},
    }
    for way, changes in ways.items():
        if way == "drafts in chunks":
            monkeypatch.setattr("engine.executor.runner._MOST_READ_AGAIN", 0)
        engine = Engine(uniform_config(tmp_path, num_pages=1024, **changes))
        if "speculation" in changes:
            speculate(engine, drafting, lambda r: [Oracle(alone[r.id][0], VOCAB, 0.8, random.Random(1))])
        assert answered(engine, PROMPTS) == alone, way
        engine.close()
