"""Checkpoints in every format of quantized weights, against transformers in float32 with the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedModel

from engine.executor.runner import ModelRunner
from tests.gpu.driving import Forced, gpu_config, random_tokens, step
from tests.gpu.models import VOCAB
from tests.gpu.test_gpu_logits import deviation
from tests.unit.engine.modeling.loader.quantizing import (
    FP8_FORMATS,
    INT4_FORMATS,
    INT8_FORMATS,
    rewrite,
)
from tests.unit.engine.modeling.loader.quantizing_floats import FP4_FORMATS

CUDA = torch.device("cuda")
FORMATS = {**FP8_FORMATS, **INT4_FORMATS, **INT8_FORMATS, **FP4_FORMATS}
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "initializer_range": 0.06,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def source(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    return MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4))


def few_and_many_rows(runner: ModelRunner) -> list[Forced]:
    """Prompts of 300, 90 and 20 tokens, one after the other; the first decodes alone, then all together."""
    requests = [
        Forced(random_tokens(prompt + answer, seed=slot), prompt, slot, range(40 * slot, 40 * slot + 40))
        for slot, (prompt, answer) in enumerate([(300, 90), (90, 40), (20, 40)])
    ]
    alone = requests[0]
    step(runner, (alone, 300))
    for _ in range(45):
        step(runner, (alone, 1))
    step(runner, *((forced, forced.prompt_length) for forced in requests[1:]))
    for _ in range(38):
        step(runner, *((forced, 1) for forced in requests))
    return requests


@torch.no_grad()
def answers(folder: Path, name: str, dtype: torch.dtype, work: list[Forced]) -> torch.Tensor:
    """Log-probabilities [rows, vocab] of transformers where `work` has predictions."""
    kind = LlamaForCausalLM if name == "llama" else MixtralForCausalLM
    model = kind.from_pretrained(folder, dtype=dtype).eval().to(CUDA)
    rows = []
    for forced in work:
        logits = model(torch.tensor([forced.tokens], device=CUDA)).logits[0].float().log_softmax(-1).cpu()
        rows += [logits[position] for position in sorted(forced.predicted)]
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("format", FORMATS)
def test_logits_are_those_of_the_values_that_the_tensors_stand_for(
    format: str, name: str, tmp_path: Path
) -> None:
    if format in (*FP8_FORMATS, *FP4_FORMATS) and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the device does not multiply 8-bit floats")
    source(name).save_pretrained(tmp_path / "source")
    rewrite(tmp_path / "source", tmp_path / "quantized", tmp_path / "dense", FORMATS[format])
    runner = ModelRunner(gpu_config(tmp_path / "quantized", cuda_graph_max_batch=4, cuda_graph_max_tokens=0))

    work = few_and_many_rows(runner)

    predicted = torch.stack([row for forced in work for _, row in sorted(forced.predicted.items())])
    exact = answers(tmp_path / "dense", name, torch.float32, work)
    ours = deviation(predicted, exact)
    theirs = deviation(answers(tmp_path / "dense", name, torch.bfloat16, work), exact)
    # Activations in 8-bit floats are rounded by a few percent, which moves logits by 0.03; a mistake, by 0.2.
    bound = 0.08 if format in FP8_FORMATS else 3 * theirs + 1e-3
    assert ours < bound, f"{ours:.5f}, of transformers in bfloat16 {theirs:.5f}"
