"""Heads for multi-token prediction on the GPU, beside models with states and with latent attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.speculation.kinds import DrafterKind
from tests.gpu.driving import generate, gpu_config
from tests.unit.engine.speculation.drafting import PROMPTS, Watched
from tests.unit.engine.speculation.test_mtp_heads import FAMILIES, save

SHAPE: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 4, "initializer_range": 0.1}
BIG: dict[str, dict[str, Any]] = {
    "qwen3.5": {"head_dim": 128, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "deepseek": {
        "kv_lora_rank": 512,
        "q_lora_rank": 128,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "head_dim": 64,
    },
}


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("graphs", [None, 0, 32], ids=["float32", "eager", "graphs"])
def test_heads_draft_by_the_formula(name: str, graphs: int | None, tmp_path: Path) -> None:
    """`graphs` None: in float32, where answers are those without a head; else in bfloat16."""
    for folder in ("model", "head"):
        (tmp_path / folder).mkdir()
    family = FAMILIES[name]
    model = save(
        tmp_path / "model",
        lambda fields, *, head: family(fields | SHAPE, head=head, **BIG[name]),
        tmp_path / "head",
    )
    changes: dict[str, object] = {"cuda_graph_max_batch": graphs or 0, "overlap": True, "chunk_budget": 64}
    if graphs is None:
        changes |= {"dtype": "float32", "attention_backend": "torch"}
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    drafting = SpeculationConfig(
        drafters=frozenset({DrafterKind.MODEL}), num_draft_tokens=3, adaptive=False, mtp=True
    )
    engine = Engine(gpu_config(model.target.folder, speculation=drafting, **changes))
    watched = Watched(engine)
    requests = [Request(id, prompt, sampling) for id, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    engine.close()
    drafted = watched.drafted[::5]
    assert len(drafted) > 5
    right = sum(draft[0] == model.draft(tokens, 1)[0] for tokens, draft in drafted)
    if graphs is None:
        plain = generate(gpu_config(model.target.folder, **changes), PROMPTS, sampling)
        assert [request.output for request in requests] == plain
        assert right == len(drafted)
    assert right >= 0.7 * len(drafted)
