"""Adapters as PEFT saves them, and the model with an adapter merged, which is their oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_adapter(
    base: Path, target: Path, seed: int, size: float = 0.3, kind: Any = AutoModelForCausalLM, **options: Any
) -> Path:
    """A random adapter of a model, large enough that it changes what is said. `kind`: class of the model."""
    model = kind.from_pretrained(base, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": EVERY, "task_type": "CAUSAL_LM"} | options
    adapted = get_peft_model(model, PeftConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter.data, std=size, generator=generator)
    adapted.save_pretrained(target)
    return target


def merged(base: Path, adapter: Path | None, kind: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """The model with the adapter in its weights. `kind`: see `save_adapter`."""
    model: Any = kind.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    whole: PreTrainedModel = model.eval()
    return whole


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """The answer, without an end."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([tokens])).logits[0, -1]  # type: ignore[operator]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def prompts(count: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, vocab) for _ in range(length)] for _ in range(count)]


@torch.inference_mode()
def activated_greedy(base: Path, adapter: Path, prompt: Sequence[int], count: int) -> list[int]:
    """The answer of PEFT with an activated adapter, which cannot be merged."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(model, adapter).eval()
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}
    ids = torch.tensor([list(prompt)])
    found = adapted.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens
