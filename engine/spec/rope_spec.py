"""Rotary embedding of a model, read from config.json in its old and new formats. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from engine.spec.errors import UnsupportedModel

__all__ = ["RopeScaling", "RopeSpec"]

_DEFAULT_THETA: Final = 10000.0


class RopeScaling(Enum):
    """Scaling of angles that extends the context beyond the one of pretraining."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    theta: float = _DEFAULT_THETA
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    """Factor by which the context is extended."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    """Context before scaling, in tokens. This and the two above are llama3's."""
    share: float = 1.0
    """Share of each head's features that are rotated; they come first."""

    def rotated_features(self, head_dim: int) -> int:
        return int(head_dim * self.share)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, partial: bool = False) -> RopeSpec:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (before).

        `partial`: whether the architecture may rotate a part of each head only.

        Raises:
            UnsupportedModel: the kind of scaling or a partial rotation is not supported.
        """
        fields: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = fields.get("rope_theta", config.get("rope_theta", _DEFAULT_THETA))
        kind = fields.get("rope_type", fields.get("type", "default"))
        share = fields.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if share != 1.0 and not partial:
            raise UnsupportedModel(f"partial_rotary_factor={share} is not supported here; it must be 1")
        try:
            scaling = RopeScaling(kind)
        except ValueError:
            supported = ", ".join(member.value for member in RopeScaling)
            message = f"rope scaling {kind!r} is not supported; Baton computes {supported}"
            raise UnsupportedModel(message) from None
        match scaling:
            case RopeScaling.NONE:
                return cls(theta=theta, share=share)
            case RopeScaling.LINEAR:
                return cls(theta=theta, share=share, scaling=scaling, factor=fields["factor"])
            case RopeScaling.LLAMA3:
                return cls(
                    theta=theta,
                    share=share,
                    scaling=scaling,
                    factor=fields["factor"],
                    low_freq_factor=fields["low_freq_factor"],
                    high_freq_factor=fields["high_freq_factor"],
                    original_max_position=fields["original_max_position_embeddings"],
                )
