"""Sources of a causal attention kernel, made of those that flashinfer generates for it.

flashinfer compiles every kernel for four kinds of masks, and with contiguous keys too; each of its source
files has two or three kernels. Baton runs one kind of mask, and over copies only what Hopper's kernels read.
So a quarter is compiled, in more files: as many compilers work at a time, each for half as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_MASKED: Final = re.compile(r"_mask_(\d)\.cu$")
_CAUSAL: Final = "1"
_INSTANTIATION: Final = re.compile(r"^template cudaError_t .*?;$\n?", re.MULTILINE | re.DOTALL)
_DISPATCH: Final = "DISPATCH_MASK_MODE("
_ONLY_CAUSAL: Final = """
#define DISPATCH_CAUSAL(mask_mode, MASK_MODE, ...) \\
  {                                                \\
    if (mask_mode != MaskMode::kCausal) {          \\
      FLASHINFER_ERROR("only causal masks");       \\
    }                                              \\
    constexpr MaskMode MASK_MODE = MaskMode::kCausal; \\
    __VA_ARGS__                                    \\
  }
"""
_KERNELS: Final = "#include <flashinfer/attention/prefill.cuh>"
_NO_RAGGED: Final = """#include <cstdint>
#include <flashinfer/attention/mask.cuh>
#include "batch_prefill_config.inc"

namespace flashinfer {

template <uint32_t CTA_TILE_Q, uint32_t HEAD_DIM_QK, uint32_t HEAD_DIM_VO, PosEncodingMode POS_ENCODING_MODE,
          bool USE_FP16_QK_REDUCTION, MaskMode MASK_MODE, typename AttentionVariant, typename Params>
cudaError_t BatchPrefillWithRaggedKVCacheDispatched(Params params, typename Params::DTypeO* tmp_v,
                                                    float* tmp_s, bool enable_pdl, cudaStream_t stream) {
  return cudaErrorNotSupported;
}

};  // namespace flashinfer
"""


def causal_sources(generated: Mapping[str, str], *, ragged: bool) -> dict[str, str]:
    """Sources to compile, by file name, and the `.inc` that they include. `generated`: flashinfer's.
    `generated`: flashinfer's.

    Without `ragged`, the kernel over contiguous keys is a stub that fails.
    """
    sources: dict[str, str] = {}
    for name, text in generated.items():
        mask = _MASKED.search(name)
        if mask is None:
            sources[name] = _dispatching(text) if name.endswith(".inc") else text
        elif mask.group(1) == _CAUSAL:
            if "_ragged_" in name and not ragged:
                stub = text.replace(_KERNELS, "").replace('#include "batch_prefill_config.inc"', _NO_RAGGED)
                sources[name] = stub
            else:
                sources |= _split(name, text)
    return sources


def _dispatching(text: str) -> str:
    """The configuration, which dispatches on the kind of mask."""
    if text.count(_DISPATCH) != 1:
        raise ValueError("flashinfer's configuration dispatches on masks in another way")
    begin = text.index("#define DISPATCH_context")
    return text[:begin] + _ONLY_CAUSAL + text[begin:].replace(_DISPATCH, "DISPATCH_CAUSAL(")


def _split(name: str, text: str) -> dict[str, str]:
    """A file for each kernel that `text` instantiates."""
    found = list(_INSTANTIATION.finditer(text))
    before, after = text[: found[0].start()], text[found[-1].end() :]
    stem = name.removesuffix(".cu")
    return {f"{stem}_{part}.cu": before + match.group() + after for part, match in enumerate(found)}
