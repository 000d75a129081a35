"""Tiny random models on disk, and requests driven through a runner without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import EngineConfig
from engine.core.plan import Chunk, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from tests.engine_config import engine_config

VOCAB = 97


def save_tiny_llama(folder: Path) -> LlamaForCausalLM:
    """Two layers, four query heads on two key heads; weights large enough that logits differ clearly."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.5,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).eval()
    model.save_pretrained(folder)
    return model


def make_config(folder: Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "model_path": folder,
        "page_size": 4,
        "num_pages": 64,
        "max_model_len": 128,
        "max_running_requests": 8,
    }
    return engine_config(**{**settings, **changes})


def make_request(
    id: int, prompt: Sequence[int], pages: Sequence[int], sampling: SamplingParams | None = None
) -> Request:
    request = Request(id=id, prompt=list(prompt), sampling=sampling or SamplingParams(max_tokens=16))
    request.pages = list(pages)
    request.slot = id
    return request


def chunk_of(request: Request, length: int) -> Chunk:
    """The next `length` tokens of a request, marked as computed."""
    start = request.num_computed
    request.num_computed += length
    samples = request.num_computed == request.num_tokens
    return Chunk(request, request.slot, start, length, len(request.output) if samples else None)


def step(runner: ModelRunner, *chunks: Chunk) -> None:
    """Run the chunks as one step and append what they sample."""
    ordered = sorted(chunks, key=lambda chunk: chunk.length == 1)
    result = runner.launch(runner.prepare(StepPlan(chunks=ordered))).result()
    assert not result.errors
    for chunk, token in zip([c for c in ordered if c.samples], result.tokens, strict=True):
        chunk.request.output.append(token)
