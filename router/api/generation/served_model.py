"""Facts about a served model, for the frontends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.model_config.model_impl import ModelImpl
from engine.model_config.pooling_spec import PoolingSpec
from router.api.generation.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from router.api.generation.text.pair_form import PairForm
from router.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    name: str
    """The name in the APIs: --served-model-name."""
    path: Path
    """The checkpoint's folder, with tokenizer.json and the chat template."""
    mode: str
    """"mixed", "disagg" or "adaptive"."""
    max_model_len: int
    """Prompt and output together, in tokens."""
    vocab_size: int
    impl: ModelImpl = ModelImpl.BATON
    """Whose modules run it."""
    eos_token_ids: tuple[int, ...] = ()
    has_states: bool = False
    """Whether layers have recurrent states, which requests that start together cannot share."""
    sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS
    shape: str = ""
    """Digest of config.json, and of how weights are quantized at load: see `shape_identity`."""
    numerics: str = ""
    """Formats of numbers that it is computed in; see `EngineConfig.numerics`."""
    no_images: str = "it is served as a model of text"
    """Why it takes no images, if it does not."""
    pooling: PoolingSpec | None = None
    """How prompts become vectors; None: the model generates text."""
    pairs: PairForm = field(default_factory=PairForm)
    """How pairs of texts are put to it."""

    @property
    def longest_prompt(self) -> int:
        """In tokens; where a model generates text, one is for the answer."""
        return self.max_model_len - (self.pooling is None)

    def check_kind(self, *, pools: bool) -> None:
        """Raise InvalidRequest for text of a model of embeddings, and the other way round.

        `pools`: whether a request is for vectors.
        """
        if self.pooling is not None and not pools:
            kind = "scores" if self.pooling.classifies else "embeddings"
            message = f"The model {self.name!r} computes {kind} and generates no text."
        elif self.pooling is None and pools:
            message = (
                f"The model {self.name!r} generates text; its server must be started with --convert embed to"
                " compute embeddings."
            )
        else:
            return
        raise InvalidRequest(message, param="model", code="wrong_model")
