"""Run the tests of CPU kernels as on processors with fewer instructions; print the products that each uses.

    python scripts/cpu_isa.py

oneDNN is limited by its own variable, and our kernels are compiled for the same instructions. Where the
processor lacks some, as AMX, those that it has are tested once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent

_ISAS: Final = {
    "AVX2": "haswell",
    "AVX512_CORE": "x86-64-v4",
    "AVX512_CORE_BF16": "cooperlake",
    "AVX512_CORE_AMX": "native",
}
"""Values of ONEDNN_MAX_CPU_ISA, and GCC's name of a processor with these instructions."""

_TESTS: Final = (
    "tests/unit/engine/modeling/layers",
    "tests/unit/engine/mixers/attention",
    "tests/unit/engine/modeling/models",
)

_CHOICE: Final = """
import torch
from engine.kernels.cpu.library import attention_products
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.linear.dtype_trial import faster_dtype

torch.set_num_threads(1)
for dtype in (torch.float32, torch.bfloat16):
    layer = Linear(576, 3072, bias=False).to(dtype)
    torch.nn.init.normal_(layer.weight)
    layer.pack()
    product = "our panels" if layer.method.panels else "oneDNN" if layer.weight.is_mkldnn else "torch"
    print(f"  {str(dtype).removeprefix('torch.')}: {product}")
print(f"  attention in bfloat16: {attention_products()[0].name}")
print(f"  --dtype auto: {faster_dtype()}")
"""


def main() -> int:
    failed = []
    for isa, target in _ISAS.items():
        print(isa, flush=True)
        environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "BATON_CPU_TARGET": target}
        commands = [sys.executable, "-c", _CHOICE], [sys.executable, "-m", "pytest", "-q", *_TESTS]
        statuses = [
            subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode
            for command in commands
        ]
        if any(statuses):
            failed.append(isa)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
