"""A model that ranks share computes what it computes on one, whatever its architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.kv_groups import full_group
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.shard import Shard, sizes_for
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM
from engine.parallel import TorchCommunicator
from kv_transfer import KVLayout
from tests.ranks import together
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.models.reference_names import NAMES
from tests.unit.engine.modeling.models.references import reference, tolerance


def spec(**shape: int) -> ModelSpec:
    sizes = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 6,
        "max_position": 512,
    }
    return ModelSpec(
        architecture="LlamaForCausalLM", norm_eps=1e-5, rope=None, tied_embeddings=False, **{**sizes, **shape}
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=() if (number + size // 2) % 2 else pytest.mark.thorough)
        for number, name in enumerate(NAMES)
        for size in (2, 4)
    ],
)
def test_logits_are_those_of_the_whole_model(name: str, size: int, tmp_path: Path) -> None:
    """With two key heads: on two ranks each has its own, on four a pair of ranks shares one."""
    oracle = reference(name, num_heads=8)
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (60,), generator=torch.Generator().manual_seed(1))

    @torch.inference_mode()
    def logits(ranks: TorchCommunicator) -> Tensor:
        model = load_model(tmp_path, communicator=ranks)
        ranks.all_reduce_min(
            0
        )  # loading sets torch's default dtype for the process, so nothing else may compute
        return model.logits(model(ids, torch.arange(len(ids)), DenseAttention(model)))

    leader, *others = together(size, logits)
    with torch.no_grad():
        torch.testing.assert_close(leader, oracle(ids[None]).logits[0], atol=2 * tolerance(name), rtol=2e-5)
    share = -(-97 // size)
    for rank, piece in enumerate(others, start=1):
        torch.testing.assert_close(piece, leader[:, rank * share : (rank + 1) * share])


@pytest.mark.parametrize(("size", "groups"), [(2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("name", ["mixtral", "qwen2 with experts", "glm4 with experts in groups", "gpt-oss"])
def test_ranks_with_experts_of_their_own_compute_the_whole_models_logits(
    name: str, size: int, groups: int, tmp_path: Path
) -> None:
    oracle = reference(name, num_heads=8)
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (60,), generator=torch.Generator().manual_seed(1))

    @torch.inference_mode()
    def logits(ranks: TorchCommunicator) -> tuple[Tensor, range]:
        model = load_model(tmp_path, communicator=ranks, expert_parallel_size=groups)
        ranks.all_reduce_min(0)
        assert model.part.experts
        return model.logits(
            model(ids, torch.arange(len(ids)), DenseAttention(model))
        ), model.part.experts.held

    (leader, _), *_ = shares = together(size, logits)

    with torch.no_grad():
        torch.testing.assert_close(leader, oracle(ids[None]).logits[0], atol=2 * tolerance(name), rtol=2e-5)
    held = [expert for _, share in shares[:: size // groups] for expert in share]
    assert held == list(range(len(held))), "each group has its own"


def test_experts_that_groups_or_ranks_cannot_share_are_refused() -> None:
    experts = ExpertSpec(count=6, per_token=2, intermediate_size=12)
    whole = replace(spec(num_kv_heads=8), experts=experts)
    with pytest.raises(UnsupportedModel, match="7 groups of ranks cannot share 6 experts"):
        whole.with_expert_parallel(7)
    with pytest.raises(UnsupportedModel, match="2 ranks cannot form 3 equal groups"):
        Shard(0, 2).of(whole.with_expert_parallel(3))
    with pytest.raises(UnsupportedModel, match="--expert-parallel-size 2: this model has no experts"):
        spec().with_expert_parallel(2)
    assert Shard(0, 8).of(whole.with_expert_parallel(2)).experts == replace(
        experts, parallel=2, intermediate_size=3
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_rank_holds_its_share_of_the_weights_and_no_more(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CausalLM, "pack", lambda model: None)  # packed weights may be padded
    reference(name, num_heads=8).save_pretrained(tmp_path)
    whole = load_model(tmp_path)
    parts = together(2, lambda ranks: load_model(tmp_path, communicator=ranks))
    for layer in ("qkv", "out", "up", "down") if name == "gpt2" else ("attention.qkv", "mlp.down"):
        full = whole.get_submodule(f"layers.0.{layer}").weight.numel()
        assert [part.get_submodule(f"layers.0.{layer}").weight.numel() for part in parts] == [full // 2] * 2


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_hold_the_key_heads_that_a_handoff_takes_them_to_hold(size: int, num_kv_heads: int) -> None:
    whole = spec(num_kv_heads=num_kv_heads)
    for rank in range(size):
        shard = Shard(rank, size)
        part = shard.of(whole)
        (rows,) = shard.rows(whole.kv_size, part.kv_size).stretches
        layout = KVLayout(
            "m", "float32", full_group(2), num_kv_heads, whole.head_dim, 16, tp_size=size, tp_rank=rank
        )
        assert rows.start == layout.first_head * whole.head_dim
        assert part.num_kv_heads == layout.heads_per_shard
        (queries,) = shard.rows(whole.q_size, part.q_size).stretches
        group = whole.num_heads // num_kv_heads
        assert queries.start // whole.head_dim // group == layout.first_head


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"num_heads": 6}, "6 attention heads cannot be shared equally by 4 ranks"),
        ({"intermediate_size": 90}, "90 features of the MLP"),
        ({"num_heads": 12, "num_kv_heads": 6}, "6 key heads and 4 ranks: neither number divides the other"),
    ],
)
def test_the_error_for_a_model_that_cannot_be_sharded_names_the_possible_sizes(
    shape: dict[str, int], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{reason}.*; the number of ranks can be 1, 2"):
        Shard(0, 4).of(spec(**shape))


def test_usual_sizes_are_offered_where_they_fit() -> None:
    assert sizes_for(spec()) == [1, 2, 4, 8]
    assert sizes_for(spec(num_heads=9, num_kv_heads=3)) == [1, 3]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_token_is_scored_by_one_rank(size: int) -> None:
    ids = [token for rank in range(size) for token in Shard(rank, size).vocabulary(9)]
    assert ids == list(range(9))
