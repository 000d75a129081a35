"""Heads for multi-token prediction, which checkpoints hold beside their model.

A head is one decoder layer over the embedding of a token and the model's final hidden state before it:
DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2. It shares embedding and LM head with its model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.model_config.config_fields import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpSpec:
    """Where a checkpoint has the modules of a head."""

    tensors: tuple[str, ...]
    """What the names of all tensors of heads begin with. A checkpoint may have several; the first is used."""
    layer: str
    """What the names of its decoder layer begin with."""
    index: int
    """The number of this layer, which decides whether it has experts."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    """From a normalised embedding and a normalised hidden state, in this order, to one hidden state."""
    norm: str
    """Before the LM head."""
    normalized: bool
    """Whether a guess after a guess starts from the hidden state after that norm, or before it."""
    quantized_projection: bool
    """Whether the projection is quantized as other linear layers are."""
    unused: tuple[str, ...] = ()
    """Copies of the model's embedding and LM head."""
    own_lm_head: bool = False
    """Whether the model's LM head is loaded once more, since the model's own is distributed over ranks."""


QWEN_MTP: Final = MtpSpec(
    tensors=("mtp.",),
    layer="mtp.layers.0.",
    index=0,
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    norm="mtp.norm",
    normalized=True,
    quantized_projection=True,
)
"""MTP module of Qwen3-Next and Qwen3.5."""


def nextn(config: Config) -> MtpSpec | None:
    """MTP modules of DeepSeek-V3 and GLM-4.5, which are stored as layers after the last; None if the
    checkpoint has none.
    """
    count, first = config.get("num_nextn_predict_layers") or 0, config["num_hidden_layers"]
    if not count:
        return None
    layer = f"model.layers.{first}."
    return MtpSpec(
        tensors=tuple(f"model.layers.{first + number}." for number in range(count)),
        layer=layer,
        index=first,
        embedding_norm=f"{layer}enorm",
        hidden_norm=f"{layer}hnorm",
        projection=f"{layer}eh_proj",
        norm=f"{layer}shared_head.norm",
        normalized=False,
        quantized_projection=False,
        unused=(f"{layer}embed_tokens.", f"{layer}shared_head.head."),
    )
