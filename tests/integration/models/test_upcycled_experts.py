"""SmolLM2 with every MLP copied into experts: any choice of them, with weights that sum to 1, is SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.modeling.loader.checkpoint import resolve
from tests.engine_config import engine_config
from tests.smollm2 import dense_tensors

EXPERTS = 3
NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Mixtral's."""
QUESTIONS = ["What is the capital of France?", "Name three colours of the rainbow and say a word on each."]


def upcycled(source: Path, target: Path) -> Path:
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    config |= {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    tensors = {}
    for name, tensor in dense_tensors(source).items():
        if ".mlp." not in name:
            tensors[name] = tensor
            continue
        layer, _, projection = name.removesuffix(".weight").rpartition(".mlp.")
        block = f"{layer}.block_sparse_moe"
        tensors[f"{block}.gate.weight"] = torch.randn(EXPERTS, config["hidden_size"])
        for expert in range(EXPERTS):
            tensors[f"{block}.experts.{expert}.{NAMES[projection]}.weight"] = tensor.clone()
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors")
    return target


def answers(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, in one batch with chunked prompts."""
    engine = Engine(engine_config(model_path=folder, chunk_budget=24, num_pages=64, max_model_len=256))
    sampling = SamplingParams(max_tokens=24, min_tokens=24)
    requests = [Request(id, prompt, sampling) for id, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


@pytest.mark.thorough
def test_copies_of_an_mlp_as_experts_answer_as_the_dense_model_does(tmp_path: Path) -> None:
    dense = resolve("smollm2").path
    tokenizer = AutoTokenizer.from_pretrained(dense)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]

    assert answers(upcycled(dense, tmp_path), prompts) == answers(dense, prompts)
