"""Models with an adapter in a slot compute what they compute with the adapter merged by PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from engine.adapters.peft_folder import read_adapter
from engine.adapters.rank_adapters import RankAdapters
from engine.config import LoraConfig
from engine.errors import AdapterRefused
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM
from engine.parallel import SINGLE_RANK, Communicator, TorchCommunicator
from tests.ranks import together
from tests.unit.engine.adapters.peft_oracle import merged, save_adapter
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.models.references import reference, tolerance

_IDS: Final = torch.randint(97, (40,), generator=torch.Generator().manual_seed(1))
_CONFIG: Final = LoraConfig(max_lora_rank=8)
_ALL: Final = {"target_modules": "all-linear"}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama with every bias": _ALL,
    "llama with tied embeddings": _ALL | {"use_rslora": True},
    "phi3": _ALL,
    "gpt2": _ALL | {"fan_in_fan_out": True},
    "glm4": _ALL | {"rank_pattern": {"o_proj": 7}, "alpha_pattern": {"layers.1.self_attn.o_proj": 3}},
    "gemma2": {"target_modules": r".*layers\.[02]\.(self_attn\.[qv]_proj|mlp\.down_proj)"},
    "mixtral": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "qwen2 with experts": {
        "target_modules": ["q_proj", "v_proj", "shared_expert.up_proj", "shared_expert.down_proj"]
    },
    "deepseek v3": {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]},
    "qwen3.5": {"target_modules": ["in_proj_qkv", "in_proj_z", "in_proj_b", "out_proj", "q_proj", "k_proj"]},
    "nemotron-h": {"target_modules": ["in_proj", "q_proj", "o_proj", "up_proj", "down_proj"]},
    "qwen3-next": {"target_modules": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]},
}


def adapted(
    base: Path, adapter: Path, ranks: Communicator = SINGLE_RANK, *, slot: int = 1
) -> tuple[CausalLM, RankAdapters]:
    model = load_model(base, communicator=ranks)
    ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
    adapters = RankAdapters(model, _CONFIG)
    stored = read_adapter("style", adapter)
    adapters.hold(stored.digest, adapters.part(stored))
    adapters.fill(slot, stored.digest)
    return model, adapters


@torch.inference_mode()
def logits(model: CausalLM, adapters: RankAdapters, slots: list[int]) -> Tensor:
    adapters.rows.use(torch.tensor(slots))
    return model.logits(model(_IDS, torch.arange(len(_IDS)), DenseAttention(model)))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_merged_model(name: str, size: int, tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    reference(name, num_heads=8).save_pretrained(base)
    save_adapter(base, adapter, 1, size=0.1, **FAMILIES[name])
    with torch.no_grad():
        oracle = merged(base, adapter)(_IDS[None]).logits[0]  # type: ignore[operator]
        plain = merged(base, None)(_IDS[None]).logits[0]  # type: ignore[operator]

    def both(ranks: TorchCommunicator | Communicator) -> tuple[Tensor, Tensor]:
        model, adapters = adapted(base, adapter, ranks)
        return logits(model, adapters, [1] * len(_IDS)), logits(model, adapters, [-1] * len(_IDS))

    got, without = together(size, both)[0] if size > 1 else both(SINGLE_RANK)
    close = {"atol": 4 * tolerance(name), "rtol": 4e-5}
    torch.testing.assert_close(got, oracle, **close)
    torch.testing.assert_close(without, plain, **close)
    assert (oracle - plain).abs().max() > 0.05, "the adapter changes nothing"


def test_a_slot_that_is_filled_again_forgets_the_adapter_before(tmp_path: Path) -> None:
    base, wide, narrow = tmp_path / "base", tmp_path / "wide", tmp_path / "narrow"
    reference("llama").save_pretrained(base)
    save_adapter(base, wide, 1)
    save_adapter(base, narrow, 2, target_modules=["k_proj"], r=2)
    model, adapters = adapted(base, wide)
    stored = read_adapter("narrow", narrow)
    adapters.hold(stored.digest, adapters.part(stored))
    adapters.fill(1, stored.digest)
    with torch.no_grad():
        oracle = merged(base, narrow)(_IDS[None]).logits[0]  # type: ignore[operator]
    torch.testing.assert_close(logits(model, adapters, [1] * len(_IDS)), oracle, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("deepseek v3", {"target_modules": ["kv_b_proj"]}, "its matrices are absorbed"),
        ("llama", {"target_modules": ["q_proj", "lm_head"]}, "head .*lm_head.base_layer.* no slots"),
        (
            "llama",
            {"target_modules": ["q_proj", "embed_tokens"]},
            "embeddings or the head .*: leave them",
        ),
        ("llama", {"r": 9}, "rank 9; --max-lora-rank is 8"),
        ("mistral", {}, "is of another base model: model.layers.0"),
        ("mixtral", {"target_modules": ["gate"]}, "target_parameters"),
    ],
)
def test_what_the_model_cannot_take_is_refused_by_name(
    name: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    made_for, served = (name, name) if name != "mistral" else ("llama", "mistral")
    reference(made_for).save_pretrained(base)
    save_adapter(base, tmp_path / "adapter", 1, **options)
    reference(served).save_pretrained(base)
    adapters = RankAdapters(load_model(base), _CONFIG)
    with pytest.raises(AdapterRefused, match=reason):
        adapters.part(read_adapter("style", tmp_path / "adapter"))
