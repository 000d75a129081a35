"""Whole engines on a GPU: overlap, graphs, chunks and sampling change the speed, never the answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import UNIFORM
from engine.core.plan import Chunk, StepPlan
from engine.core.read import LabelLogprobs, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.loop.warmup import warm_up, warmup_plan_for
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import save

PROMPTS = [random_tokens(length, seed=length) for length in (5, 100, 33, 64, 200, 1, 17)]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@torch.no_grad()
def expected(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt], device="cuda")
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [16, 64, None])
@pytest.mark.parametrize("name", ["llama-64", "qwen2-windows"])
def test_in_float32_chunked_and_overlapped_answers_equal_transformers(
    name: str, chunk: int | None, overlap: bool, tmp_path: Path
) -> None:
    model = save(name, tmp_path).cuda()
    config = gpu_config(
        tmp_path, dtype="float32", attention_backend="torch", chunk_budget=chunk, overlap=overlap
    )
    assert generate(config, PROMPTS, GREEDY) == [expected(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(("graphs", "tokens"), [(0, 0), (8, 0), (4, 64)])
@pytest.mark.parametrize("name", ["llama-128", "qwen2-windows"])
def test_overlap_changes_no_token_in_bfloat16(name: str, graphs: int, tokens: int, tmp_path: Path) -> None:
    save(name, tmp_path)
    config = {"chunk_budget": 64, "cuda_graph_max_batch": graphs, "cuda_graph_max_tokens": tokens}
    plain = generate(gpu_config(tmp_path, **config), PROMPTS, GREEDY)
    assert generate(gpu_config(tmp_path, **config, overlap=True), PROMPTS, GREEDY) == plain


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_an_engine_on_the_second_gpu_gives_the_same_tokens(tmp_path: Path) -> None:
    save("llama-128", tmp_path)
    first, second = (gpu_config(tmp_path, device=f"cuda:{n}", chunk_budget=64, overlap=True) for n in (0, 1))
    with ThreadPoolExecutor(1) as thread:  # its current GPU changes
        on_second = thread.submit(generate, second, PROMPTS, GREEDY).result()
    assert on_second == generate(first, PROMPTS, GREEDY)


def test_a_seeded_draw_is_the_same_on_gpu_and_cpu(tmp_path: Path) -> None:
    save("llama-64", tmp_path)
    sampling = SamplingParams(
        max_tokens=16, ignore_eos=True, temperature=0.8, top_p=0.9, top_k=40, seed=5, repetition_penalty=1.1
    )
    exact = {"dtype": "float32", "attention_backend": "torch"}
    on_gpu = generate(gpu_config(tmp_path, **exact, overlap=True), PROMPTS, sampling)
    assert on_gpu == generate(gpu_config(tmp_path, **exact, device="cpu"), PROMPTS, sampling)


@pytest.mark.parametrize("overlap", [False, True])
def test_log_probabilities_of_named_tokens_equal_transformers(overlap: bool, tmp_path: Path) -> None:
    """Log-probabilities of reads, and with generated tokens, in the same steps."""
    model, labels = save("llama-64", tmp_path).cuda(), (5, 90, 17)
    config = gpu_config(
        tmp_path, dtype="float32", attention_backend="torch", chunk_budget=16, overlap=overlap
    )
    engine, found = Engine(config), dict[int, list[float]]()
    named = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=0, logprob_token_ids=labels[:2])
    answers = [Request(100 + n, prompt, named) for n, prompt in enumerate(PROMPTS)]
    for number, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        engine.submit(Request(number, prompt, SamplingParams(max_tokens=0), read=Read(labels)))
        engine.submit(answer)
    while engine.has_work:
        output = engine.step()
        for request, numbers in output.outputs:
            assert isinstance(numbers, LabelLogprobs)
            found[request.id] = numbers.logprobs
        for token in output.tokens:
            if token.position == 0 and token.logprobs is not None:
                assert [name for name, _ in token.logprobs.top] == [*labels[:2]]
                found[token.request.id] = [value for _, value in token.logprobs.top]
    for number, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            row = model(torch.tensor([prompt], device="cuda")).logits[0, -1].float().log_softmax(-1)
        expected_row = row[list(labels)].tolist()
        assert found[number] == pytest.approx(expected_row, abs=1e-4)
        assert found[100 + number] == pytest.approx(expected_row[:2], abs=1e-4)


@pytest.mark.parametrize("graphs", [0, 8])
def test_launching_a_step_never_waits_for_the_device(graphs: int, tmp_path: Path) -> None:
    save("llama-128", tmp_path)
    runner = ModelRunner(gpu_config(tmp_path, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=graphs))
    samplings = [
        SamplingParams(max_tokens=64),
        SamplingParams(max_tokens=64, temperature=0.7, seed=1),
        SamplingParams(max_tokens=64, temperature=0.7, top_p=0.9, min_p=0.05, seed=2),
        SamplingParams(max_tokens=64, logprobs=3, presence_penalty=0.5, min_tokens=60, stop_token_ids=(7,)),
    ]
    requests = []
    for slot, sampling in enumerate(samplings):
        request = Request(id=slot, prompt=random_tokens(40, slot), sampling=sampling)
        request.slot, request.pages = slot, list(range(8 * slot, 8 * slot + 8))
        requests.append(request)

    def plan() -> StepPlan:
        chunks = []
        for request in requests:
            length = request.num_pending
            chunks.append(Chunk(request, request.slot, request.num_computed, length, len(request.output)))
            request.num_computed += length
        return StepPlan(chunks=chunks)

    for _ in range(3):  # the first steps load kernels
        for request, token in zip(
            requests, runner.launch(runner.prepare(plan())).result().tokens, strict=True
        ):
            request.output.append(token)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        flight = runner.launch(runner.prepare(plan()))
        while flight.proceed():
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(flight.result().tokens) == 4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-128", {}),
        ("llama-128", {"quantization": "fp8"}),
        ("llama-128", {"attention_backend": UNIFORM}),
        ("qwen3-experts", {}),
        ("deepseek", {}),
    ],
)
def test_after_a_warm_up_an_engine_compiles_no_kernel(
    name: str, changes: dict[str, object], tmp_path: Path, compiled: list[str]
) -> None:
    save(name, tmp_path)
    config = gpu_config(
        tmp_path,
        num_pages=2048,
        max_model_len=4096,
        chunk_budget=2048,
        cuda_graph_max_batch=8,
        cuda_graph_max_tokens=64,
        overlap=True,
        **changes,
    )
    runner = ModelRunner(config)
    warm_up(runner, config, warmup_plan_for(config))
    compiled.clear()
    engine = Engine(config, runner=runner)
    sampled = replace(GREEDY, temperature=0.8, top_p=0.9, logprobs=2)
    variants = [
        sampled,
        GREEDY,
        replace(GREEDY, temperature=1.0),
        replace(sampled, top_k=20, min_p=0.02, repetition_penalty=1.2, logprobs=None),
        replace(GREEDY, frequency_penalty=0.4, logit_bias=((7, 2.0),), prompt_logprobs=3),
        replace(GREEDY, logprobs=0, logprob_token_ids=(3, 4)),
    ]
    lengths = [1, 2, 37, 700, 1401, 1402, 1403, 1999, 2048, 2500, 3901]
    for id, length in enumerate(lengths * 2):
        engine.submit(Request(id, random_tokens(length, seed=id), variants[id % len(variants)]))
        for _ in range(1 + id % 4):
            engine.step()
    while engine.has_work:
        engine.step()
    assert compiled == []


@pytest.mark.alone
def test_the_pool_takes_what_the_largest_step_leaves(tmp_path: Path) -> None:
    save("llama-128", tmp_path)
    engine = Engine(
        gpu_config(tmp_path, num_pages=0, kv_memory_fraction=0.3, chunk_budget=256, cuda_graph_max_batch=4)
    )
    free, total = torch.cuda.mem_get_info()
    assert 0.2 * total < total - free < 0.32 * total
    assert engine.kv.pool.num_pages == engine.runner.kv.num_pages
    engine.close()


@pytest.mark.parametrize(("graphs", "tokens", "overlap"), [(8, 0, False), (4, 64, True)])
def test_the_experts_of_tokens_recorded_in_graphs_are_those_of_eager_steps(
    graphs: int, tokens: int, overlap: bool, tmp_path: Path
) -> None:
    save("qwen3-experts", tmp_path)

    def recorded(**settings: object) -> list[bytes]:
        config = gpu_config(tmp_path, chunk_budget=64, return_routed_experts=True, **settings)
        engine = Engine(config)
        rows = dict.fromkeys(range(len(PROMPTS)), b"")
        for number, prompt in enumerate(PROMPTS):
            engine.submit(Request(number, prompt, GREEDY, routed_experts=True))
        while engine.has_work:
            for request, part in engine.step().outputs:
                rows[request.id] += part.rows
        engine.close()
        return list(rows.values())

    plain = recorded()
    layers = len(plain[0]) // (len(PROMPTS[0]) + GREEDY.max_tokens - 1)
    assert [len(rows) for rows in plain] == [layers * (len(p) + GREEDY.max_tokens - 1) for p in PROMPTS]
    captured = recorded(cuda_graph_max_batch=graphs, cuda_graph_max_tokens=tokens, overlap=overlap)
    same = sum(a == b for a, b in zip(b"".join(plain), b"".join(captured), strict=True))
    assert same >= 0.98 * sum(map(len, plain)), "bfloat16 routes few tokens otherwise"
