"""A model that is filled again computes what a fresh one does, bit by bit, in the same memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Gguf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.kernels.cpu.library import cpu_kernels
from engine.model_config.errors import WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.linear import codes, linear_layer, panels
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.refill import Refill
from engine.modeling.models.base import CausalLM
from engine.parallel import TorchCommunicator
from tests.ranks import together
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.gguf.tiny_files import MODELS as GGUF_MODELS
from tests.unit.engine.modeling.loader.gguf.tiny_files import converted
from tests.unit.engine.modeling.loader.gguf.tiny_files import write as write_gguf
from tests.unit.engine.modeling.loader.quantizing import (
    FP8_FORMATS,
    INT4_FORMATS,
    INT8_FORMATS,
    rewrite,
)
from tests.unit.engine.modeling.loader.quantizing_floats import FP4_FORMATS
from tests.unit.engine.modeling.loader.test_mxfp4_checkpoint import save_mxfp4
from tests.unit.engine.modeling.loader.test_quantized_weights import model as quantizable
from tests.unit.engine.modeling.models.reference_names import LIKE_OTHERS, NAMES
from tests.unit.engine.modeling.models.references import reference

CODES = {**INT4_FORMATS, **INT8_FORMATS, **FP4_FORMATS}
FORMATS = {**FP8_FORMATS, **CODES}
IDS = torch.arange(40) * 7 % 97
HAS_KERNELS = cpu_kernels(torch.float32) is not None
Tensors = dict[str, Tensor]


def another(folder: Path, target: Path) -> Path:
    """A checkpoint of the same shape in which every weight is another."""
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            tensors[name] = (tensor * (1 + 0.2 * noise) + 0.02 * noise).to(tensor.dtype)
    return rewritten(folder, target, tensors)


def rewritten(folder: Path, target: Path, tensors: Tensors) -> Path:
    target.mkdir(parents=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return target


def pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Two checkpoints of one of the references."""
    reference(name).save_pretrained(folder / "old")
    return folder / "old", another(folder / "old", folder / "new")


def quantized_pair(name: str, format: str, folder: Path) -> tuple[Path, Path]:
    quantizable(name).save_pretrained(folder / "source")
    another(folder / "source", folder / "other source")
    for source, target in (("source", "old"), ("other source", "new")):
        rewrite(folder / source, folder / target, folder / "dense" / target, FORMATS[format])
    return folder / "old", folder / "new"


@torch.inference_mode()
def logits(model: CausalLM) -> Tensor:
    return model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))


def refill(model: CausalLM, folder: Path) -> None:
    spec = ModelSpec.from_folder(folder)
    if spec.experts is not None and model.spec.experts is not None:
        spec = spec.with_expert_parallel(model.spec.experts.parallel)
    Refill(model, folder, spec).run()


def memory(part: object, seen: set[int]) -> Iterator[int]:
    """The addresses of all tensors within an object."""
    if id(part) in seen:
        return
    seen.add(id(part))
    within: Iterable[object] = ()
    if isinstance(part, Tensor):
        if part.is_mkldnn:
            yield torch.ops.mkldnn.data_ptr(part)
        elif part.numel():
            yield part.untyped_storage().data_ptr()
    elif isinstance(part, dict):
        within = part.values()
    elif isinstance(part, list | tuple):
        within = part
    elif isinstance(part, nn.Module):
        within = vars(part).values()
    elif is_dataclass(part):
        within = [getattr(part, field.name) for field in fields(part)]
    for one in within:
        yield from memory(one, seen)


def addresses(model: nn.Module) -> list[int]:
    found = list(memory(model, set()))
    assert len(found) > 10, "the walk found the parameters"
    return found


def check_refilled(old: Path, new: Path, load: Callable[[Path], CausalLM] = load_model) -> CausalLM:
    model, expected = load(old), logits(load(new))
    before, places = logits(model), addresses(model)
    assert not torch.equal(before, expected)

    refill(model, new)

    assert torch.equal(logits(model), expected)
    assert addresses(model) == places
    return model


@pytest.mark.parametrize("name", NAMES + LIKE_OTHERS)
def test_every_architecture_is_filled_again(name: str, tmp_path: Path) -> None:
    check_refilled(*pair(name, tmp_path))


@pytest.fixture(params=["our kernel", "oneDNN", "torch"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernel that multiplies plain weights on a CPU."""
    kind: str = request.param
    if kind == "our kernel" and not HAS_KERNELS:
        pytest.skip("the kernels cannot be compiled here")
    monkeypatch.setattr(panels, "panels_win", lambda dtype: kind == "our kernel")
    if kind == "torch":
        monkeypatch.setattr(linear_layer, "packed", lambda weight: weight)
    return kind


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_weights_of_each_layout_of_a_cpu_stay_where_they_are(
    name: str, dtype: str, product: str, tmp_path: Path
) -> None:
    model = check_refilled(*pair(name, tmp_path), lambda folder: load_model(folder, dtype=dtype))

    if product == "oneDNN" and dtype == "float32" and torch.backends.mkldnn.is_available():
        assert model.head.weight.is_mkldnn


IN_THEIR_FORMAT = [(format, True) for format in CODES if HAS_KERNELS]
DEQUANTIZED = [(format, False) for format in FORMATS]
OTHERS = [
    (name, format, packed)
    for name in ("qwen2 with a shared expert", "deepseek v3", "glm, which rotates half of each head")
    for format, packed in (("fp8 in blocks", False), ("awq", HAS_KERNELS))
]


@pytest.mark.parametrize(
    ("name", "format", "packed"),
    [(name, *way) for name in ("llama", "mixtral") for way in DEQUANTIZED + IN_THEIR_FORMAT] + OTHERS,
)
def test_weights_of_every_format_are_filled_again(
    name: str, format: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: packed)
    check_refilled(*quantized_pair(name, format, tmp_path))


@pytest.mark.parametrize("packed", [False, HAS_KERNELS])
@pytest.mark.parametrize("kind", [Gguf.Q4_0, Gguf.Q5_1, Gguf.Q8_0, Gguf.Q4_1])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_integers_of_gguf_files_are_filled_again(
    architecture: str, kind: Gguf, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: packed)
    check_refilled(*gguf_pair(architecture, kind, kind, tmp_path))


def gguf_pair(architecture: str, old: Gguf, new: Gguf, folder: Path) -> tuple[Path, Path]:
    found = []
    for name, kind in (("old", old), ("new", new)):
        torch.manual_seed(len(found))
        write_gguf(folder / f"{name}.gguf", architecture, GGUF_MODELS[architecture](), kind)
        found.append(converted(folder / f"{name}.gguf", keep_codes=True))
    return found[0], found[1]


@pytest.mark.parametrize("packed", [False, HAS_KERNELS])
def test_experts_in_mxfp4_are_filled_again(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: packed)
    old = tmp_path / "old"
    old.mkdir()
    tensors = load_file(save_mxfp4(old) / "model.safetensors")
    swapped = {name: tensors[re.sub("[01]", lambda m: "10"[int(m[0])], name, count=1)] for name in tensors}
    check_refilled(old, rewritten(old, tmp_path / "new", swapped))


def test_weights_that_are_quantized_at_load_are_quantized_again(tmp_path: Path) -> None:
    old, new = quantized_pair("mixtral", "fp8 per channel", tmp_path)
    old, new = tmp_path / "source", tmp_path / "other source"
    model, expected = (load_model(folder, quantization="fp8") for folder in (old, new))

    Refill(model, new, ModelSpec.from_folder(new).quantized("fp8")).run()

    assert torch.equal(logits(model), logits(expected))


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("llama", "fp8 in blocks"),
        ("mixtral", "awq"),
        ("llama", "gptq with act-order"),
        ("deepseek v3", "awq"),
    ],
)
def test_every_rank_fills_its_slice_again(
    name: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: HAS_KERNELS)
    check_ranks(*quantized_pair(name, format, tmp_path))


def test_ranks_fill_tied_heads_and_biases_again(tmp_path: Path) -> None:
    check_ranks(*pair("gpt2", tmp_path))


def test_ranks_fill_the_experts_that_they_hold_again(tmp_path: Path) -> None:
    check_ranks(*quantized_pair("mixtral", "awq", tmp_path), expert_parallel_size=2)


def check_ranks(old: Path, new: Path, **options: Any) -> None:
    def on_rank(ranks: TorchCommunicator) -> tuple[Tensor, Tensor]:
        model, fresh = (load_model(folder, communicator=ranks, **options) for folder in (old, new))
        ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
        places = addresses(model)
        refill(model, new)
        ranks.all_reduce_min(0)
        assert addresses(model) == places
        return logits(model), logits(fresh)

    for found, expected in together(2, on_rank):
        assert torch.equal(found, expected)


def change_config(tensors: Tensors, config: dict[str, Any]) -> None:
    config["rms_norm_eps"] = 0.5


def drop_tensor(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def add_tensor(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.ones(1)


def reshape_tensor(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["model.layers.2.mlp.down_proj.weight"] = torch.ones(48, 81)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_config, r"another model \(norm_eps\)"),
        (drop_tensor, r"missing model\.layers\.1\.mlp\.up_proj\.weight"),
        (add_tensor, r"unexpected model\.layers\.3\.mlp\.up_proj\.weight"),
        (reshape_tensor, r"down_proj\.weight has shape \[48, 81\], but config\.json asks for \[48, 80\]"),
    ],
)
def test_another_shape_is_refused_before_anything_is_written(
    change: Callable[[Tensors, dict[str, Any]], None], reason: str, tmp_path: Path
) -> None:
    old, new = pair("llama", tmp_path)
    tensors, config = load_file(new / "model.safetensors"), json.loads((new / "config.json").read_text())
    change(tensors, config)
    other = rewritten(new, tmp_path / "other", tensors)
    (other / "config.json").write_text(json.dumps(config))
    model = load_model(old)
    before = logits(model)

    with pytest.raises(WeightsError, match=reason):
        refill(model, other)

    assert torch.equal(logits(model), before)


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels cannot be compiled here")
def test_a_layout_that_the_memory_does_not_hold_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)
    old, new = gguf_pair("llama", Gguf.Q4_0, Gguf.Q8_0, tmp_path)
    model = load_model(old)
    before = logits(model)

    with pytest.raises(WeightsError, match=r"layers\.0\.\S+ cannot be filled again: uint16 .* int8"):
        refill(model, new)
    refill(model, old)

    assert torch.equal(logits(model), before)
