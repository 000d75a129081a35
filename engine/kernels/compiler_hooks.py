"""Has every compiler of kernels report to `COMPILATIONS`: Triton's and flashinfer's.

That of the kernels for CPUs (`engine.kernels.cpu.build`) reports by itself. Nothing here is compiled by
torch: no torch.compile, no torch extensions.
"""

from __future__ import annotations

import time
from functools import wraps
from importlib.util import find_spec
from typing import Any

from engine.kernels.compilations import COMPILATIONS, CompilationPhase


def watch_compilers() -> None:
    """Call it before the first kernel is used on a GPU. Later calls change nothing."""
    if find_spec("triton") is not None:
        _watch_triton()
    if find_spec("flashinfer") is not None:
        _watch_flashinfer()


def _watch_triton() -> None:
    import triton

    triton.knobs.compilation.listener = _on_triton


def _on_triton(*, src: Any, times: Any, cache_hit: bool, **_: object) -> None:
    """A `CompilationListener`: called after a kernel is compiled, or found in the cache on disk."""
    variant = _variant(src) if COMPILATIONS.phase is CompilationPhase.SERVING else ""
    COMPILATIONS.note(src.name.strip("_"), times.total * 1e-6, cached=cache_hit, variant=variant)


def _variant(src: Any) -> str:
    """The arguments for which a kernel is specialised: constants, and types with what is known of values."""
    parts = []
    for index, (name, type) in enumerate(src.signature.items()):
        if (index,) in src.constants:
            parts.append(f"{name}={src.constants[(index,)]}")
        else:
            parts.append(f"{name}: {type}" + (" / 16" if src.attrs.get((index,)) else ""))
    return ", ".join(parts)


def _watch_flashinfer() -> None:
    from flashinfer.jit.core import JitSpec

    if not hasattr(JitSpec.build_and_load, "__wrapped__"):
        JitSpec.build_and_load = _noted(JitSpec.build_and_load)


def _noted(build_and_load: Any) -> Any:
    @wraps(build_and_load)
    def noted(spec: Any) -> Any:
        cached, began = spec.is_compiled, time.monotonic()
        module = build_and_load(spec)
        COMPILATIONS.note(spec.name, time.monotonic() - began, cached=cached)
        return module

    return noted
