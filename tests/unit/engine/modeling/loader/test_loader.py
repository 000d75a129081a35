"""Every tensor of a checkpoint is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.model_config.errors import WeightsError
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM

Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay in the layout of the checkpoint, which is compared here."""
    monkeypatch.setattr(CausalLM, "pack", lambda model: None)


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    llama().save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def weights(model: CausalLM) -> Tensors:
    """Every parameter as the checkpoint has it."""
    return dict(model.named_parameters())


def same(one: CausalLM, other: CausalLM) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_shards_give_the_same_model_as_one_file(folder: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    llama().save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2

    assert same(load_model(sharded), load_model(folder))


def test_the_weights_fill_every_parameter(folder: Path) -> None:
    rewrite(folder, lambda tensors: [tensor.fill_(7.0) for tensor in tensors.values()])

    for name, value in weights(load_model(folder)).items():
        assert torch.all(value == 7.0), name


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))

    with pytest.raises(WeightsError, match=r"missing model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(folder)


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.surprise": torch.ones(1)}))

    with pytest.raises(WeightsError, match=r"unexpected model\.layers\.0\.surprise"):
        load_model(folder)


def test_many_missing_tensors_are_counted_and_not_all_listed(folder: Path) -> None:
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]])

    with pytest.raises(WeightsError, match=r"and \d+ more"):
        load_model(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(33)}))

    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[33\], .* \[32\]"):
        load_model(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()

    with pytest.raises(WeightsError, match=shard.name):
        load_model(tmp_path)


def test_a_folder_without_safetensors_says_what_is_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.bin")

    with pytest.raises(WeightsError, match=r"lacks model\.safetensors"):
        load_model(folder)


def test_a_file_of_torch_is_read_where_there_are_no_safetensors(folder: Path) -> None:
    before = load_model(folder).state_dict()
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    after = load_model(folder).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_file_of_torch_that_holds_code_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"fc": print}, folder / "pytorch_model.bin")

    with pytest.raises(WeightsError, match="convert it to safetensors"):
        load_model(folder)


def test_stale_rotary_buffers_are_ignored(folder: Path) -> None:
    before = load_model(folder)
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))

    assert same(load_model(folder), before)


def test_gpt2_loads_in_both_spellings_of_its_names(tmp_path: Path) -> None:
    GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_head=2, n_layer=2, n_positions=32)
    ).save_pretrained(tmp_path)
    prefixed = load_model(tmp_path)

    def to_the_original_spelling(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)

    rewrite(tmp_path, to_the_original_spelling)
    assert same(load_model(tmp_path), prefixed)


def test_a_checkpoint_saved_without_its_head_class_loads(folder: Path) -> None:
    """Its names lack `model.`, as those of embedding models."""
    whole = load_model(folder)

    def strip(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, strip)
    assert same(whole, load_model(folder))


def test_progress_rises_to_the_size_of_the_files(folder: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(stage: str, done: int, total: int) -> None:
        if stage == "Loading weights":
            seen.append((done, total))

    load_model(folder, progress=note)

    size = (folder / "model.safetensors").stat().st_size
    assert {total for _, total in seen} == {size}
    assert seen == sorted(seen)
    assert seen[0][0] == 0
    assert seen[-1][0] == size


def test_dummy_weights_need_no_files_and_follow_from_the_seed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    first, again, other = (load_model(folder, load_format="dummy", seed=seed) for seed in (1, 1, 2))

    assert same(first, again)
    assert not same(first, other)
    assert all(torch.isfinite(value).all() for value in weights(first).values())


def test_building_a_bfloat16_model_leaves_the_default_dtype_alone(folder: Path) -> None:
    model = load_model(folder, dtype="bfloat16")

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
