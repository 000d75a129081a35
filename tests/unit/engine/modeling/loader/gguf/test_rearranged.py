"""Models whose tensors llama.cpp's converter rearranges are converted back to what they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter, dequantize
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.loader.weight_files import weight_files
from engine.modeling.models.base import CausalLM
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.gguf.rearranged_files import DELTA, FILES, random_model, write
from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    converted,
    weights_of,
)


@torch.inference_mode()
def logits(model: CausalLM) -> torch.Tensor:
    return model.logits(model(torch.arange(96), torch.arange(96), DenseAttention(model)))


@pytest.mark.parametrize("name", FILES)
def test_a_converted_model_computes_what_the_original_does(name: str, tmp_path: Path) -> None:
    oracle = random_model(FILES[name])
    write(tmp_path / "model.gguf", FILES[name], oracle)

    ours = logits(load_model(converted(tmp_path / "model.gguf")))

    with torch.inference_mode():
        expected = oracle(torch.arange(96)[None]).logits[0]
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
@pytest.mark.parametrize("name", FILES)
def test_integers_that_are_kept_compute_what_their_values_do(name: str, kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, FILES[name], random_model(FILES[name]), kind)
    values = logits(load_model(converted(path)))

    kept = load_model(folder := converted(path, keep_codes=True))

    torch.testing.assert_close(logits(kept), values, atol=1e-4, rtol=1e-4)
    assert kept.spec.quantization is not None
    assert weights_of(folder) <= 1.3 * path.stat().st_size


def test_blocks_that_span_two_heads_become_values_in_16_bits(tmp_path: Path) -> None:
    sizes = {"linear_value_head_dim": 128, "linear_num_value_heads": 4, "hidden_size": 256}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**(DELTA | sizes)))
    path = tmp_path / "model.gguf"
    write(path, FILES["qwen3.5"], model, lambda name: Kind.Q6_K if "ssm_out" in name else Kind.Q8_0)
    stored = next(one for one in GGUFReader(path).tensors if one.name == "blk.0.ssm_out.weight")
    heads = np.split(dequantize(stored.data, Kind.Q6_K), 4, axis=1)

    kept = load_model(folder := converted(path, keep_codes=True))

    found = dict(read_tensors(weight_files(folder)))["model.layers.0.linear_attn.out_proj.weight"]
    assert found.dtype == torch.float16
    expected = np.concatenate([heads[head] for head in (0, 2, 1, 3)], axis=1)
    assert np.array_equal(found.numpy(), expected.astype(np.float16))
    assert kept.spec.quantization is not None


@pytest.mark.parametrize(("architecture", "state"), [("lfm2", "short convolutions"), ("mamba2", "")])
def test_architectures_with_other_states_are_refused_by_name(
    architecture: str, state: str, tmp_path: Path
) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    with pytest.raises(UnsupportedModel, match=rf"'{architecture}'.*{state}.* is not supported"):
        converted(tmp_path / "model.gguf")
