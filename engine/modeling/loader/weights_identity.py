"""What identifies a model's weights, independent of the names of files and folders.

The shape is that of the memory and of the computation: of config.json and of how weights are quantized at
load. It stays while a model runs; its weights may be replaced by others of the same shape.

python -m engine.modeling.loader.weights_identity FOLDER prints the digest of its weights and what it took.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.tensor_digests import Stamp, tensor_digests
from engine.modeling.loader.weight_files import weight_files

_SAYS_NOTHING: Final = {"_name_or_path", "transformers_version"}
"""Fields of config.json that differ between copies of one model."""


class FilledCheckpoint:
    """The weights that a model was filled with."""

    def __init__(self, folder: Path, load_format: str = "auto", seed: int = 0) -> None:
        """Take this before loading. `seed`: of dummy weights. Raises WeightsError if files are missing."""
        self._dummy = f"dummy {seed}" if load_format == "dummy" else None
        files = [] if self._dummy else weight_files(folder)
        self._stamps = {file: Stamp.of(file) for file in files}

    def digest(self) -> str:
        """Hex digest over the name, type, shape and values of every tensor, in whatever file it is.

        Costs what `tensor_digests` costs. Raises WeightsError if files have changed since they were loaded.
        """
        digests = tensor_digests(self._stamps)
        named = json.dumps([self._dummy, sorted(digests.items())])
        return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


def shape_identity(folder: Path, quantization: str | None = None, *, long_angles: bool = False) -> str:
    """Hex digest of config.json, of how weights are quantized as they are loaded, and of whether LongRoPE's
    angles are those for long contexts."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    known = {key: value for key, value in config.items() if key not in _SAYS_NOTHING}
    described = json.dumps([known, quantization, long_angles], sort_keys=True)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def served_shape(config: EngineConfig, spec: ModelSpec) -> str:
    """`shape_identity` of a model as it is served."""
    long_angles = spec.rope is not None and spec.rope.is_for_long_contexts
    return shape_identity(config.model_path, config.quantization, long_angles=long_angles)


if __name__ == "__main__":
    began, on_cpu = time.perf_counter(), time.process_time()
    digest = FilledCheckpoint(Path(sys.argv[1])).digest()
    took = f"{time.perf_counter() - began:.2f} s, {time.process_time() - on_cpu:.2f} s of CPU time"
    print(f"{digest} ({took})")
