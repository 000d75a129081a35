"""EAGLE-3 heads: one decoder layer that drafts from a larger model's hidden states.

Li et al. 2025 (arXiv 2503.01840). There are three kinds of config.json: SpecForge's, which vLLM and SGLang
read too; that of the authors' own heads, which names the class of their target; and that of vLLM's
speculators, with the layer in `transformer_layer_config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from engine.model_config.config_fields import Config, llama, require
from engine.model_config.errors import UnsupportedModel

EAGLE3: Final = "LlamaForCausalLMEagle3"
_LAYERS: Final = "eagle_aux_hidden_state_layer_ids"
_OTHER_NAMES: Final = frozenset({"Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"})


@dataclass(frozen=True, slots=True)
class EagleSpec:
    """What a head is beside its decoder layer."""

    draft_vocab_size: int
    """Tokens that it can draft; fewer than its target has, with a table of which ones."""
    target_hidden_size: int
    target_layers: tuple[int, ...] | None
    """Layers of the target whose outputs it reads; None: the second, a middle one, the fourth last."""
    norm_before_residual: bool = False
    """Whether the residual of the layer is the normalised hidden state."""

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The layers that it reads of a target with `num_layers`. Raises UnsupportedModel."""
        layers = self.target_layers or (1, num_layers // 2 - 1, num_layers - 4)
        if not all(0 <= layer < num_layers for layer in layers):
            raise UnsupportedModel(
                f"the EAGLE-3 head reads layers {', '.join(map(str, layers))} of its target, which has"
                f" {num_layers}; use a head of this target"
            )
        return layers

    @property
    def num_taps(self) -> int:
        return len(self.target_layers or (0, 0, 0))


def is_eagle3(config: Config) -> bool:
    """Whether config.json is of a head, by whichever name."""
    names = set(config.get("architectures") or ())
    return bool(names & {EAGLE3, *_OTHER_NAMES}) or _is_of_authors(config)


def eagle3(config: Config) -> dict[str, Any]:
    if _is_of_authors(config):
        config = {**config, "num_hidden_layers": 1}  # some say how many their target has
    require(config, "num_hidden_layers", 1)
    options = config.get("eagle_config") or {}
    require(options, "use_aux_hidden_state", True)
    layers = options.get(_LAYERS)
    if "transformer_layer_config" in config and config.get(_LAYERS):
        layers = [layer - 1 for layer in config[_LAYERS]]  # vLLM counts the inputs of layers
    eagle = EagleSpec(
        draft_vocab_size=config.get("draft_vocab_size") or config["vocab_size"],
        target_hidden_size=config.get("target_hidden_size") or config["hidden_size"],
        target_layers=tuple(layers) if layers else None,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
    )
    return llama(config) | {"tied_embeddings": False, "eagle": eagle}


def _is_of_authors(config: Config) -> bool:
    return config.get("architectures") == ["LlamaForCausalLM"] and bool(config.get("draft_vocab_size"))
