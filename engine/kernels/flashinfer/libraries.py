"""flashinfer's attention kernels as libraries: which ones a model needs, how they are built, and loaded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from flashinfer import norm
from flashinfer.jit import env, gen_batch_mla_module, gen_batch_prefill_module
from flashinfer.jit.norm import gen_norm_module

from engine.kernels.compilations import COMPILATIONS
from engine.kernels.flashinfer.builds import KernelBuild, Report, build_missing, one_at_a_time
from engine.kernels.flashinfer.causal_sources import causal_sources
from engine.model_config.model_spec import ModelSpec

_DIGITS: Final = 12


class Kernel(Enum):
    FA2 = "fa2"
    """Any GPU since Ampere; splits long contexts among multiprocessors."""
    FA3 = "fa3"
    """Hopper; faster for many query rows."""


@dataclass(frozen=True, slots=True)
class Library:
    """What is known when a kernel is compiled."""

    kernel: Kernel
    queries: torch.dtype
    stored: torch.dtype
    """Dtype of keys and values."""
    dim: int
    """Features of a head."""
    windowed: bool
    capped: bool
    """Scores have a soft cap."""

    def __str__(self) -> str:
        asks = [name for name, asked in (("window", self.windowed), ("soft cap", self.capped)) if asked]
        stored = str(self.stored).removeprefix("torch.")
        return ", ".join([f"flashinfer {self.kernel.name}", f"heads of {self.dim} in {stored}", *asks])


class LatentShape(NamedTuple):
    """Features of a stored row: first the latent, then the rotated part of the key."""

    rank: int
    rotated: int


@dataclass(frozen=True, slots=True)
class LatentLibrary:
    """The same of a kernel for latents, which are stored in the dtype of queries."""

    kernel: Kernel
    dtype: torch.dtype
    shape: LatentShape

    def __str__(self) -> str:
        stored = str(self.dtype).removeprefix("torch.")
        return (
            f"flashinfer {self.kernel.name}, latents of {self.shape.rank} + {self.shape.rotated} in {stored}"
        )


def kernel_of(device: torch.device) -> Kernel:
    """The fastest for many query rows on this GPU."""
    return Kernel.FA3 if torch.cuda.get_device_capability(device) == (9, 0) else Kernel.FA2


def libraries_of(
    spec: ModelSpec, dtype: torch.dtype, stored: torch.dtype, device: torch.device
) -> list[Library | LatentLibrary]:
    """What attention of all layers of a model loads.

    FA3 reads copies, in 16 bits, and pages if they are in 16 bits too.
    """
    if spec.latent is not None:
        shape = LatentShape(spec.latent.rank, spec.latent.rotated)
        return [LatentLibrary(kernel_of(device), dtype, shape)]
    capped = spec.attention.soft_cap is not None
    windowed = sorted({spec.window(layer) is not None for layer in spec.attention_layers})
    kernels = [(Kernel.FA2, stored)]
    if kernel_of(device) is Kernel.FA3:
        kernels.append((Kernel.FA3, dtype))
    return [
        Library(kernel, dtype, keys, spec.head_dim, has_window, capped)
        for kernel, keys in kernels
        for has_window in windowed
    ]


def build_libraries(libraries: Iterable[Library | LatentLibrary], report: Report) -> None:
    """Compile those that this machine lacks, so that `load` only loads them.

    Raises BuildFailed.
    """
    builds: dict[str, KernelBuild] = {str(library): _build_of(library) for library in libraries}
    if norm._USE_CUDA_NORM:  # otherwise CuTe's compiler makes them
        builds["flashinfer norms"] = gen_norm_module()
    build_missing(builds, env.FLASHINFER_JIT_DIR, report)


@cache
def load(library: Library) -> Any:
    """The library's functions `plan`, `paged_run` and `ragged_run`, which take C++ arguments."""
    build_libraries([library], lambda said: None)
    spec = _build_of(library)
    began = time.monotonic()
    module = spec.load(spec.get_library_path())
    COMPILATIONS.note(str(library), time.monotonic() - began, cached=True)
    return module


@cache
def _build_of(library: Library | LatentLibrary) -> Any:
    """A `JitSpec`: flashinfer's own if this machine has its library, else one with less to compile."""
    with one_at_a_time(env.FLASHINFER_JIT_DIR / "baton-sources.lock"):  # flashinfer writes sources
        if isinstance(library, LatentLibrary):
            dtypes = (library.dtype,) * 3
            return gen_batch_mla_module(library.kernel.value, *dtypes, torch.int32, *library.shape, False)
        whole = gen_batch_prefill_module(
            library.kernel.value,
            library.queries,
            library.stored,
            library.queries,
            torch.int32,
            library.dim,
            library.dim,
            0,  # positions are not encoded here
            library.windowed,
            library.capped,
            False,  # products are not summed in 16 bits
        )
        return whole if whole.is_compiled else _causal(whole, ragged=library.kernel is Kernel.FA3)


def _causal(whole: Any, *, ragged: bool) -> Any:
    folder = whole.sources[0].parent
    sources = causal_sources({file.name: file.read_text() for file in folder.iterdir()}, ragged=ragged)
    flags = repr((whole.extra_cflags, whole.extra_cuda_cflags, whole.extra_ldflags))
    digest = hashlib.sha256(repr((sorted(sources.items()), flags)).encode()).hexdigest()[:_DIGITS]
    name = f"{whole.name}_causal_{digest}"
    own = env.FLASHINFER_GEN_SRC_DIR / name
    own.mkdir(parents=True, exist_ok=True)
    for file, text in sources.items():
        if not (own / file).exists():  # the folder's name says what is in it
            (own / file).write_text(text)
    return replace(whole, name=name, sources=[own / file for file in sources if file.endswith(".cu")])
