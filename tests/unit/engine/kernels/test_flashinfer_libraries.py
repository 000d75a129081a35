"""The attention kernels that a model loads are those that were built for it, with flashinfer's names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.latent_spec import LatentSpec
from tests.unit.engine.kernels.test_flashinfer_builds import GENERATED

BF16, DIM = torch.bfloat16, 64


@dataclass(frozen=True)
class JitSpec:
    """flashinfer's. It is built when a file of its name is in `built`."""

    name: str
    sources: list[Path]
    built: Path
    arguments: tuple[Any, ...] = ()
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    loaded: list[str] = field(default_factory=list)

    @property
    def is_compiled(self) -> bool:
        return (self.built / self.name).exists()

    def get_library_path(self) -> Path:
        return self.built / self.name

    def load(self, path: Path) -> str:
        assert path.exists()
        self.loaded.append(path.name)
        return path.name


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module over a flashinfer that writes sources into `tmp_path`, whose ninja builds all that it is
    asked for."""
    sources, built = tmp_path / "sources", tmp_path / "built"
    built.mkdir()

    def gen_batch_prefill_module(*arguments: Any) -> JitSpec:
        name = "_".join(str(argument).removeprefix("torch.") for argument in arguments)
        folder = sources / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in GENERATED.items():
            (folder / file).write_text(text)
        files = [folder / file for file in GENERATED if file.endswith(".cu")]
        return JitSpec(name, files, built, arguments)

    def gen_batch_mla_module(backend: str, *arguments: Any) -> JitSpec:
        return JitSpec(f"mla_{backend}", [], built, arguments)

    env = SimpleNamespace(FLASHINFER_JIT_DIR=built, FLASHINFER_GEN_SRC_DIR=sources)
    modules = {
        "flashinfer": {"norm": SimpleNamespace(_USE_CUDA_NORM=True)},
        "flashinfer.jit": {
            "env": env,
            "gen_batch_mla_module": gen_batch_mla_module,
            "gen_batch_prefill_module": gen_batch_prefill_module,
        },
        "flashinfer.jit.norm": {"gen_norm_module": lambda: JitSpec("norm", [], built)},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    own = "engine.kernels.flashinfer.libraries"
    monkeypatch.delitem(sys.modules, own, raising=False)
    imported = importlib.import_module(own)

    def build_missing(builds: dict[str, JitSpec], folder: Path, report: object) -> None:
        for name, spec in builds.items():
            if not spec.is_compiled:
                spec.get_library_path().touch()
                asked.append(name)

    asked: list[str] = []
    monkeypatch.setattr(imported, "build_missing", build_missing)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    yield SimpleNamespace(module=imported, asked=asked, built=built)
    sys.modules.pop(own)


def spec(latent: LatentSpec | None = None, **attention: Any) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        norm_eps=1e-5,
        rope=None,
        tied_embeddings=False,
        num_layers=4,
        hidden_size=64,
        intermediate_size=128,
        num_heads=8,
        num_kv_heads=2,
        head_dim=DIM,
        vocab_size=97,
        max_position=4096,
        attention=AttentionSpec(**attention),
        latent=latent,
    )


def test_each_kind_of_layers_has_a_library_of_each_kernel(libraries: Any) -> None:
    found = libraries.module.libraries_of(spec(windows=(128, None) * 2), BF16, torch.float8_e4m3fn, "cuda")
    assert [str(library) for library in found] == [
        f"flashinfer FA2, heads of {DIM} in float8_e4m3fn",
        f"flashinfer FA2, heads of {DIM} in float8_e4m3fn, window",
        f"flashinfer FA3, heads of {DIM} in bfloat16",
        f"flashinfer FA3, heads of {DIM} in bfloat16, window",
    ]


def test_what_was_built_is_what_is_loaded(libraries: Any) -> None:
    found = libraries.module.libraries_of(spec(soft_cap=50.0), BF16, BF16, "cuda")
    libraries.module.build_libraries(found, lambda said: None)
    assert libraries.asked == [*map(str, found), "flashinfer norms"]
    names = [libraries.module.load(library) for library in found]
    assert [name.startswith(kernel) for name, kernel in zip(names, ("fa2", "fa3"), strict=True)] == [True] * 2
    assert all("_causal_" in name for name in names)
    assert len(libraries.asked) == 3


def test_latents_have_one_library_which_is_flashinfers_own(libraries: Any) -> None:
    latent = LatentSpec(query_rank=None, rank=512, rotated=64, unrotated=128, value_dim=128)
    [found] = libraries.module.libraries_of(spec(latent=latent), BF16, BF16, "cuda")
    assert str(found) == "flashinfer FA3, latents of 512 + 64 in bfloat16"
    libraries.module.build_libraries([found], lambda said: None)
    assert libraries.asked == [str(found), "flashinfer norms"]
    assert (libraries.built / "mla_fa3").exists()


def test_a_prebuilt_library_is_not_built_again(libraries: Any) -> None:
    [fa2, fa3] = libraries.module.libraries_of(spec(), BF16, BF16, "cuda")
    prebuilt = f"fa2_bfloat16_bfloat16_bfloat16_int32_{DIM}_{DIM}_0_False_False_False"
    (libraries.built / prebuilt).touch()
    libraries.module.build_libraries([fa2, fa3], lambda said: None)
    assert libraries.asked == [str(fa3), "flashinfer norms"]
    assert libraries.module.load(fa2) == prebuilt


def test_norms_that_cute_compiles_are_not_built(libraries: Any) -> None:
    libraries.module.norm._USE_CUDA_NORM = False
    libraries.module.build_libraries([], lambda said: None)
    assert libraries.asked == []
