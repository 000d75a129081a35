"""What the GPU path predicts in bfloat16, against transformers in float32."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.executor.runner import ModelRunner
from tests.gpu.driving import Forced, gpu_config, random_tokens, step
from tests.gpu.models import save

MODELS = [
    "llama-64",
    "llama-128",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3-experts",
    "glm4-experts",
    "gpt2",
    "deepseek",
]


def deviation(predicted: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative deviation of the median row: where attention is nearly a tie, rounding may swing a single row
    far.
    """
    return float(((predicted - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


@torch.no_grad()
def oracle(model: PreTrainedModel, forced: Forced) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [positions, vocab] in float32, and those of transformers' own bfloat16 run."""
    tokens = torch.tensor([forced.tokens], device="cuda")
    model.cuda()
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():  # frequencies of rotations stay in float32
        parameter.data = parameter.data.bfloat16()
    exact, near = (each(tokens).logits[0].float().log_softmax(-1).cpu() for each in (model, rounded))
    return exact, near


def deviations(model: PreTrainedModel, work: list[Forced]) -> tuple[float, float]:
    """From float32: of what was predicted, and of transformers' own bfloat16 run."""
    predicted, exact, rounded = ([] for _ in range(3))
    for forced in work:
        positions = sorted(forced.predicted)
        predicted += [forced.predicted[p] for p in positions]
        for rows, answer in zip((exact, rounded), oracle(model, forced), strict=True):
            rows += list(answer[positions])
    assert len(predicted) > 100
    ours, theirs = (deviation(torch.stack(rows), torch.stack(exact)) for rows in (predicted, rounded))
    return ours, theirs


def requests() -> list[Forced]:
    """Prompts from one token to many pages; each of 16-token pages, out of order in the pool."""
    lengths = [(200, 180), (37, 30), (90, 64), (12, 1), (300, 257)]
    pages = [(page * 7) % 509 for page in range(5 * 20)]
    return [
        Forced(random_tokens(total, seed=slot), prompt, slot, pages[slot * 20 : slot * 20 + 20])
        for slot, (total, prompt) in enumerate(lengths)
    ]


def drive(runner: ModelRunner, work: list[Forced], chunk: int) -> None:
    """Mixed batches: every request takes `chunk` tokens of its prompt a step, or decodes, until it ends."""
    while True:
        todo = [f for f in work if f.request.num_tokens < len(f.tokens)]
        if not todo:
            return
        step(runner, *((f, min(chunk, f.request.num_pending)) for f in todo))


@pytest.mark.parametrize("graphs", [0, 8], ids=["eager", "graphs"])
@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_near_float32_as_those_of_transformers_in_bfloat16_are(
    name: str, splits: bool, graphs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.mixers.attention.flashinfer.chunks.splits_contexts", lambda *_: splits)
    model = save(name, tmp_path)
    runner = ModelRunner(gpu_config(tmp_path, cuda_graph_max_batch=graphs, cuda_graph_max_tokens=20 * graphs))
    work = requests()
    drive(runner, work, chunk=48)
    ours, theirs = deviations(model, work)
    # Rounding early in a context shifts all that follows it, so a few contexts scatter widely; a mistake in
    # positions, masks or pages moves the logits by as much as they are.
    assert ours < 3 * theirs + 1e-3, f"{name}: {ours:.5f} against {theirs:.5f}"


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_page_size_does_not_change_what_is_predicted(page_size: int, tmp_path: Path) -> None:
    model = save("llama-128", tmp_path)
    config = gpu_config(tmp_path, page_size=page_size, num_pages=8192 // page_size)
    runner = ModelRunner(config)
    forced = Forced(random_tokens(300, 1), 290, 0, range(3, 3 + -(-300 // page_size)))
    drive(runner, [forced], chunk=128)
    exact, rounded = oracle(model, forced)
    positions = sorted(forced.predicted)
    predicted = torch.stack([forced.predicted[p] for p in positions])
    assert (
        deviation(predicted, exact[positions]) < 1.5 * deviation(rounded[positions], exact[positions]) + 1e-3
    )


@pytest.mark.parametrize(("fp8_kv", "bound"), [(False, 0.005), (True, 0.03)])
def test_chunks_whole_prompts_and_graphs_agree(
    fp8_kv: bool, bound: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that differ by bfloat16's rounding may be rounded apart to 8 bits."""
    monkeypatch.setattr("engine.mixers.attention.flashinfer.chunks.splits_contexts", lambda *_: False)
    save("llama-128", tmp_path)
    runs = []
    for chunk, graphs, tokens in ((1024, 0, 0), (33, 0, 0), (1024, 32, 0), (16, 32, 0), (33, 4, 256)):
        sizes = {"cuda_graph_max_batch": graphs, "cuda_graph_max_tokens": tokens}
        runner = ModelRunner(gpu_config(tmp_path, **sizes, fp8_kv=fp8_kv))
        work = requests()
        drive(runner, work, chunk)
        runs.append(work)
    for other in runs[1:]:
        pairs = [
            (same.predicted[position], row)
            for forced, same in zip(runs[0], other, strict=True)
            for position, row in forced.predicted.items()
        ]
        assert deviation(*(torch.stack(rows) for rows in zip(*pairs, strict=True))) < bound


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
def test_a_page_left_full_of_nan_does_not_harm_its_next_owner(
    splits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.mixers.attention.flashinfer.chunks.splits_contexts", lambda *_: splits)
    save("llama-128", tmp_path)
    clean, dirty = (ModelRunner(gpu_config(tmp_path, cuda_graph_max_batch=4)) for _ in range(2))
    dirty.kv.tensor[: dirty.kv.num_pages] = torch.nan
    rows = []
    for runner in (clean, dirty):
        work = [Forced(random_tokens(60, s), 40, s, range(8 * s, 8 * s + 4)) for s in range(3)]
        drive(runner, work, chunk=24)
        rows.append([torch.stack(list(f.predicted.values())) for f in work])
    for a, b in zip(*rows, strict=True):
        assert torch.equal(a, b)
