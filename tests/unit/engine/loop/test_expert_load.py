"""Which experts get the tokens, as a worker reports it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor import expert_load
from engine.executor.expert_load import ExpertLoad
from engine.loop.engine import Engine
from engine.modeling.layers.experts import ExpertRouter
from tests.engine_config import engine_config
from tests.unit.tiny import save_tiny_llama

EXPERTS, CHOSEN = 6, 2


def engine(folder: Path) -> Engine:
    return Engine(engine_config(model_path=folder, num_pages=64, max_model_len=256))


def serve(engine: Engine, tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, min_tokens=tokens)
    engine.submit(Request(0, [1, 2, 3], sampling))
    while engine.has_work:
        engine.step()


def save_mixtral(folder: Path) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = MixtralConfig(**shape, **heads, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN)
    MixtralForCausalLM(config).save_pretrained(folder)


def test_tokens_that_all_go_to_the_same_experts_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_load, "_STEPS", 4)
    save_mixtral(tmp_path)
    served = engine(tmp_path)
    load = served.runner.expert_load
    assert load.imbalance is None
    for router in served.runner._model.modules():
        if isinstance(router, ExpertRouter):
            router.weight.zero_()  # of equal scores the first experts win

    serve(served, 12)

    assert load.imbalance == EXPERTS / CHOSEN


def test_the_measure_is_of_the_latest_steps(tmp_path: Path) -> None:
    load = ExpertLoad(torch.nn.Module(), torch.device("cpu"))
    load._take(torch.tensor([[9, 1], [5, 5]]))
    assert load.imbalance == pytest.approx((1.8 + 1.0) / 2)
    load._take(torch.tensor([[12, 4], [8, 8]]))
    assert load.imbalance == 1.0
    load._take(torch.tensor([[12, 4], [8, 8]]))
    assert load.imbalance == 1.0, "nothing was computed since"


def test_a_model_without_experts_has_no_imbalance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_load, "_STEPS", 2)
    save_tiny_llama(tmp_path)
    served = engine(tmp_path)
    serve(served, 8)
    assert served.runner.expert_load.imbalance is None
