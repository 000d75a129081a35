"""LoRA adapters on a GPU: kernels against plain torch, whole engines against the merged models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import LoraConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import save
from tests.unit.engine.adapters.adapted import ask, load
from tests.unit.engine.adapters.kernel_cases import CASES, Case, add_to_few, expected
from tests.unit.engine.adapters.peft_oracle import greedy, merged, save_adapter

PROMPTS = [random_tokens(length, seed=length) for length in (5, 100, 33, 64, 200, 17)]
SHAPES = [case for case in CASES if case.rank >= 16] + [
    Case(64, 4096, (range(4096), range(4096, 5120), range(5120, 6144)), 16, slots=16),
    Case(2048, 4096, (range(14336), range(14336, 28672)), 16, slots=2),
    Case(7, 14336, (range(4096),), 64, slots=5),
]
LORA = LoraConfig(max_loras=2, max_lora_rank=16)
KERNELS = [(case, few) for case in SHAPES for few in (False, True) if case.rows <= 128 or not few]


def kernels(few: bool) -> Callable[..., None]:
    from engine.kernels.matmul.adapters import add_low_rank

    return add_to_few if few else add_low_rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("case", "few"), KERNELS, ids=str)
def test_each_row_gets_the_product_of_its_adapter(case: Case, few: bool, dtype: torch.dtype) -> None:
    add = kernels(few)
    product, *rest = case.tensors(dtype, "cuda")
    before, slots = product.clone(), rest[-1]
    wanted = expected(product, *rest, case.pieces)
    add(product, *rest, case.pieces)
    close = 1e-4 if dtype is torch.float32 else 4e-2
    torch.testing.assert_close(product.double(), wanted, atol=close * case.rank**0.5, rtol=close)
    assert torch.equal(product[slots < 0], before[slots < 0])


@pytest.mark.parametrize(("case", "few"), KERNELS, ids=str)
def test_a_row_gets_the_same_bits_whatever_other_rows_have(case: Case, few: bool) -> None:
    add = kernels(few)
    product, x, a, b, slots = case.tensors(torch.bfloat16, "cuda")
    others = slots.clone()
    others[: len(slots) // 2] = -1
    mixed, alone = product.clone(), product.clone()
    add(mixed, x, a, b, slots, case.pieces)
    add(alone, x, a, b, others, case.pieces)
    assert torch.equal(mixed[len(slots) // 2 :], alone[len(slots) // 2 :])


def answers(engine: Engine, *requests: Request) -> list[list[int]]:
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        assert not engine.step().failed
    engine.check_pages()
    return [list(request.output) for request in requests]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [16, 64])
def test_in_float32_each_row_gets_the_answer_of_its_adapter(
    chunk: int, overlap: bool, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    save("llama-64", base)
    adapters = [save_adapter(base, tmp_path / f"adapter{k}", k, size=0.1, r=4 * (k + 1)) for k in range(3)]
    exact = {"dtype": "float32", "attention_backend": "torch", "chunk_budget": chunk, "overlap": overlap}
    engine = Engine(gpu_config(base, **exact, lora=LORA))
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    requests = [
        ask(10 * k + n, prompt, digest)
        for n, prompt in enumerate(PROMPTS[:3])
        for k, digest in enumerate(digests)
    ]
    got = answers(engine, *requests)
    engine.close()
    models = [merged(base, adapter) for adapter in (None, *adapters)]
    assert got == [greedy(model, prompt, 6) for prompt in PROMPTS[:3] for model in models]


@pytest.mark.parametrize(("graphs", "tokens"), [(0, 0), (16, 0), (8, 64)])
@pytest.mark.parametrize("name", ["llama-128", "qwen2"])
def test_without_adapters_in_the_batch_answers_are_those_without_slots(
    name: str, graphs: int, tokens: int, tmp_path: Path
) -> None:
    save(name, tmp_path)
    config = {"chunk_budget": 64, "cuda_graph_max_batch": graphs, "cuda_graph_max_tokens": tokens}
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    plain = generate(gpu_config(tmp_path, **config), PROMPTS, sampling)
    assert generate(gpu_config(tmp_path, **config, lora=LORA), PROMPTS, sampling) == plain


def test_graphs_and_eager_steps_give_the_same_answers(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save("llama-128", base)
    adapters = [save_adapter(base, tmp_path / f"adapter{k}", k, size=0.1) for k in range(3)]
    found = []
    for graphs, tokens in ((0, 0), (16, 0), (16, 64)):
        config = {"chunk_budget": 64, "cuda_graph_max_batch": graphs, "cuda_graph_max_tokens": tokens}
        engine = Engine(gpu_config(base, **config, overlap=True, lora=LORA))
        digests = [b"", *(load(engine, adapter) for adapter in adapters)]
        requests = [
            ask(10 * k + n, prompt, digest, max_tokens=16)
            for n, prompt in enumerate(PROMPTS)
            for k, digest in enumerate(digests)
        ]
        found.append(answers(engine, *requests))
        engine.close()
    eager, *captured = found
    assert len({tuple(answer) for answer in eager}) > len(PROMPTS), "the adapters change nothing"
    for other in captured:
        same = sum(one == two for one, two in zip(eager, other, strict=True))
        assert same >= 0.75 * len(eager), "bfloat16 turns few answers, a wrong adapter turns most"
