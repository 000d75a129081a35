"""A GGUF file becomes the folder that it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter, dequantize
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.checkpoint import CheckpointError, resolve
from engine.modeling.loader.gguf import converter as gguf
from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    MODELS,
    VOCABULARY,
    WIDE,
    converted,
    gguf_name,
    tensors,
    weights_of,
    write,
)


@pytest.mark.parametrize("architecture", list(MODELS))
@torch.inference_mode()
def test_a_converted_model_computes_what_the_original_does(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    oracle = MODELS[architecture]().eval()
    write(tmp_path / "model.gguf", architecture, oracle)

    model = load_model(converted(tmp_path / "model.gguf"))

    ids = torch.arange(96)
    ours = model.logits(model(ids, torch.arange(96), DenseAttention(model)))
    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)
    assert model.spec.eos_token_ids == (5,)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q6_K, Kind.BF16, Kind.IQ2_XXS], ids=lambda kind: kind.name)
def test_values_are_those_of_the_file_and_take_its_size_or_16_bits(kind: Kind, tmp_path: Path) -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**WIDE))
    path = tmp_path / "model.gguf"
    write(path, "qwen2", model, kind)
    blocks = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    folder = converted(path)

    found = dict(tensors(folder))
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        values = dequantize(blocks[gguf_name(name, "qwen2")].data, kind)
        expected = values.astype(np.float16) if kind is Kind.IQ2_XXS else values
        assert np.array_equal(found[name].float().numpy(), expected)
    in_16_bits = 2 * sum(weight.numel() for weight in model.parameters())
    assert weights_of(folder) <= 1.2 * (in_16_bits if kind is Kind.IQ2_XXS else path.stat().st_size)


def test_a_large_model_is_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "small.gguf", "llama", MODELS["llama"]())
    whole = converted(tmp_path / "small.gguf")
    monkeypatch.setattr(gguf, "_SHARD_BYTES", 50_000)
    (tmp_path / "small.gguf").rename(tmp_path / "large.gguf")
    sharded = converted(tmp_path / "large.gguf")

    assert len(list(whole.glob("*.safetensors"))) == 1
    assert len(list(sharded.glob("*.safetensors"))) > 3
    one, other = (dict(tensors(folder)) for folder in (whole, sharded))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_tokenizer_and_the_end_of_a_chat_turn_come_along(tmp_path: Path) -> None:
    def chat(writer: GGUFWriter) -> None:
        writer.add_eot_token_id(9)
        writer.add_chat_template("{{ messages[0].content }}")

    write(tmp_path / "model.gguf", "llama", MODELS["llama"](), extra=chat)

    folder = converted(tmp_path / "model.gguf")

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens([5]) == [VOCABULARY[5]]
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": [5, 9]}


def test_a_model_in_several_files_is_read_whole_from_any_of_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    oracle = MODELS["llama"]().eval()
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "model.gguf", "llama", oracle, tensors_a_part=7)
    parts = sorted(folder.glob("*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]

    found = [resolve(str(part), cache=tmp_path) for part in (parts[0], parts[2])]

    assert found[0] == found[1]
    assert found[0].name == "model"
    model = load_model(found[0].path)
    ids = torch.arange(96)
    with torch.inference_mode():
        ours = model.logits(model(ids, torch.arange(96), DenseAttention(model)))
        torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00003.gguf: 3 parts"):
        resolve(str(parts[0]), cache=tmp_path)


def test_other_architectures_and_unknown_tensors_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "other.gguf", "starcoder2", MODELS["qwen2"]())
    write(
        tmp_path / "odd.gguf",
        "qwen2",
        MODELS["qwen2"](),
        extra=lambda writer: writer.add_tensor("blk.0.odd.weight", np.ones(4, dtype=np.float32)),
    )

    with pytest.raises(
        UnsupportedModel, match=r"'starcoder2' is not supported; .* llama, qwen2, qwen3, gemma2"
    ):
        converted(tmp_path / "other.gguf")
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.odd\.weight"):
        converted(tmp_path / "odd.gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model" * 100)

    with pytest.raises(UnsupportedModel, match="no GGUF file"):
        converted(tmp_path / "model.gguf")
