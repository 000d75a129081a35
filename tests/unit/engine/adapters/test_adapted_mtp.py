"""A checkpoint's head for multi-token prediction drafts for the base model; adapters decide what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import LoraConfig, SpeculationConfig
from tests.unit.engine.adapters.adapted import adapted_engine, answer, ask, load
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.engine.speculation.drafting import MODEL_ONLY
from tests.unit.engine.speculation.test_mtp_heads import FAMILIES, save

TARGETS = {
    "deepseek": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
    "qwen3.5": ["q_proj", "v_proj", "o_proj", "in_proj_qkv", "out_proj", "gate_proj", "down_proj"],
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("family", TARGETS)
def test_answers_with_drafts_of_the_head_are_those_of_the_adapters(
    family: str, overlap: bool, tmp_path: Path
) -> None:
    base, scratch = tmp_path / "base", tmp_path / "head"
    for folder in (base, scratch):
        folder.mkdir()
    vocab = save(base, FAMILIES[family], scratch).target.model.config.vocab_size
    styles = [
        save_adapter(base, tmp_path / f"style{seed}", seed, target_modules=TARGETS[family])
        for seed in range(2)
    ]
    engine = adapted_engine(
        base,
        lora=LoraConfig(max_loras=2, max_lora_rank=4),
        speculation=SpeculationConfig(drafters=MODEL_ONLY, num_draft_tokens=3, adaptive=False, mtp=True),
        num_pages=200,
        max_model_len=256,
        chunk_budget=16,
        overlap=overlap,
    )
    digests = [b"", *(load(engine, style) for style in styles)]
    asked = prompts(2, 21, vocab)
    requests = [
        ask(10 * place + number, prompt, digest, max_tokens=16)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests)
    ]
    answer(engine, *requests)
    oracles = [merged(base, style) for style in (None, *styles)]
    right = [greedy(oracle, prompt, 16) for prompt in asked for oracle in oracles]
    assert [request.output for request in requests] == right
    assert len({*map(tuple, right)}) == len(right), "the adapters change nothing"
    assert engine.stats().drafts.drafted > 0
    engine.close()
