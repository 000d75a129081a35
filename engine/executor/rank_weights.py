"""Identity and replacement of the weights of a model, or of one rank's part of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.config import EngineConfig
from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import EngineError, RefillRefused, WeightsIncomplete
from engine.kv.cache.stored import Fp8KV
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.kv_scales import kv_scales
from engine.modeling.loader.model_loader import as_loaded
from engine.modeling.loader.refill import Refill, check_shape
from engine.modeling.loader.weights_identity import FilledCheckpoint, served_shape
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator


class RankWeights:
    def __init__(self, config: EngineConfig, communicator: Communicator) -> None:
        """Create it before the model is loaded. Raises WeightsError if files are missing."""
        self._config = config
        self._communicator = communicator
        self._checkpoint: FilledCheckpoint | None = FilledCheckpoint(
            config.model_path, config.load_format, config.seed
        )
        self._identity: WeightsIdentity | None = None
        self._fp8_kv: Fp8KV | None = None
        self._whole: ModelSpec | None = None
        """With the vision model alone: the spec of the checkpoint, whose language model is not loaded."""
        if config.vision_model_only:
            self._whole = ModelSpec.from_folder(config.model_path, config.model_impl)

    @property
    def identity(self) -> WeightsIdentity:
        """Identity of the whole model's weights. The first call reads all of them, or their kept digests.

        Raises WeightsError if files have changed since they were loaded.
        """
        if self._identity is None:
            if self._checkpoint is None:
                raise EngineError("the weights are incomplete: a refill failed")
            self._identity = WeightsIdentity(self._checkpoint.digest())
        return self._identity

    def shape(self, spec: ModelSpec) -> str:
        """See `shape_identity`."""
        return served_shape(self._config, spec)

    def fp8_kv(self, spec: ModelSpec) -> Fp8KV | None:
        """Scales of 8-bit KV, which stay when weights are replaced; None without 8-bit KV."""
        if self._config.fp8_kv and self._fp8_kv is None:
            dummy = self._config.load_format == "dummy"
            self._fp8_kv = _fp8_kv(None if dummy else self._config.model_path, spec)
        return self._fp8_kv

    def refill(self, model: CausalLM, new: NewWeights, problem: str = "") -> None:
        """Overwrite a model's weights in place, on all ranks at the same time. No step may run meanwhile.

        `problem`: why this rank cannot take them; empty: it has found none.

        Raises:
            RefillRefused: a rank cannot take them; nothing has been written.
            WeightsIncomplete: only a part has been written.
        """
        try:
            refill = self._checked(model, new.checkpoint)
            checkpoint = FilledCheckpoint(new.checkpoint)
        except (WeightsError, UnsupportedModel, OSError) as error:
            problem = problem or str(error)
        if self._anywhere(problem):
            raise RefillRefused(problem or f"another rank cannot take {new.checkpoint}; its log says why")
        self._checkpoint = self._identity = None
        try:
            with ThreadPoolExecutor(1, "digest") as thread:
                digest = thread.submit(checkpoint.digest) if self._communicator.shard.is_first_rank else None
                if refill is not None:
                    refill.run()
            identity = None if digest is None else WeightsIdentity(digest.result(), new.version)
        except (WeightsError, OSError) as error:
            problem = str(error)
        if self._anywhere(problem):
            raise WeightsIncomplete(problem or f"another rank has not read all of {new.checkpoint}")
        self._checkpoint, self._identity = checkpoint, identity

    def _checked(self, model: CausalLM, folder: Path) -> Refill | None:
        """None: the language model is not loaded."""
        config, spec = self._config, ModelSpec.from_folder(folder, self._config.model_impl)
        if self._whole is not None:
            check_shape(folder, spec, self._whole)
            return None
        if config.pooling is not None:
            spec = spec.without_vocabulary()
        spec = as_loaded(spec, config.quantization, config.max_model_len, config.expert_parallel_size)
        refill = Refill(model, folder, spec)
        if self._fp8_kv is not None and self._fp8_kv != _fp8_kv(folder, spec):
            raise WeightsError(f"{folder} has other scales of 8-bit KV; start a worker anew with it")
        return refill

    def _anywhere(self, problem: str) -> bool:
        """Whether any rank has a problem."""
        return self._communicator.all_reduce_min(int(not problem)) == 0


def _fp8_kv(checkpoint: Path | None, spec: ModelSpec) -> Fp8KV:
    """None: of dummy weights. A checkpoint's scales are those of its own weights."""
    layers = spec.kv_layers
    return Fp8KV(kv_scales(checkpoint, layers) if checkpoint else ((1.0, 1.0),) * len(layers))
