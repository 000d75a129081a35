"""Rotary embedding of a model, read from config.json in its old and new formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel

_DEFAULT_THETA: Final = 10000.0
_OLD_NAMES: Final = {"su": "longrope", "mrope": "default"}
"""Older names of rotations. In text, all positions of Qwen-VL's mrope are the same."""


class RopeScaling(Enum):
    """Scaling of angles that extends the context beyond the one of pretraining."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    DYNAMIC = "dynamic"
    """Scales after max_position_embeddings only, which is the longest context here: after it, angles, and
    so cached keys, would depend on the length of the request."""
    PROPORTIONAL = "proportional"
    """The first of the frequencies that all features would have; the other features are not rotated."""
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    theta: float = _DEFAULT_THETA
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    """Factor by which the context is extended."""
    original_max_position: int = 0
    """Context before scaling, in tokens; of llama3, YaRN and LongRoPE."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """This and the one above are llama3's."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether the range in which YaRN interpolates is rounded to whole features; YaRN's, as the two above."""
    factors: tuple[float, ...] = ()
    """LongRoPE's divisor of each frequency."""
    long_factors: tuple[float, ...] = ()
    """Factors for contexts beyond `original_max_position`."""
    magnitude: float = 1.0
    """Factor of rotated queries and keys."""
    query_scaling: float = 0.0
    """Growth of queries beyond `original_max_position`; Ministral 3's."""
    share: float = 1.0
    """Share of each head's features that are rotated; they come first. Of frequencies, if proportional."""

    def rotated_features(self, head_dim: int) -> int:
        """Features of which the first half is rotated with the second."""
        return head_dim if self.scaling is RopeScaling.PROPORTIONAL else int(head_dim * self.share)

    @property
    def is_for_long_contexts(self) -> bool:
        """Whether LongRoPE's angles are those for contexts beyond `original_max_position`."""
        return bool(self.long_factors) and self.factors == self.long_factors

    def for_context(self, longest: int) -> RopeSpec:
        """The angles for requests of up to `longest` tokens, which share their cached keys."""
        if self.long_factors and longest > self.original_max_position:
            return replace(self, factors=self.long_factors)
        return self

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        partial: bool = False,
        layer_type: str | None = None,
        theta: float = _DEFAULT_THETA,
    ) -> RopeSpec:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (before).

        `partial`: whether the architecture may rotate a part of each head only. `layer_type`: whose
        parameters to take where layers have different ones. `theta`: the architecture's default.

        Raises:
            UnsupportedModel: the kind of scaling or a partial rotation is not supported.
        """
        fields: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        if any(isinstance(value, Mapping) for value in fields.values()):
            fields = dict(fields.get(layer_type or "") or {})
        theta = fields.get("rope_theta") or config.get("rope_theta") or theta
        kind = fields.get("rope_type", fields.get("type", "default"))
        share = fields.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if share != 1.0 and not partial:
            raise UnsupportedModel(f"partial_rotary_factor={share} is not supported here; it must be 1")
        try:
            scaling = RopeScaling(_OLD_NAMES.get(kind, kind))
        except ValueError:
            supported = ", ".join(member.value for member in RopeScaling)
            message = f"rope scaling {kind!r} is not supported; Baton computes {supported}"
            raise UnsupportedModel(message) from None
        return cls(theta=theta, share=share, **_read(scaling, fields, config))


def _read(scaling: RopeScaling, fields: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a RopeSpec with this scaling. Raises KeyError if config.json lacks one."""
    if scaling in (RopeScaling.NONE, RopeScaling.DYNAMIC):
        return {}
    if scaling is RopeScaling.LINEAR:
        return {"scaling": scaling, "factor": fields["factor"]}
    if scaling is RopeScaling.PROPORTIONAL:
        return {"scaling": scaling, "factor": fields.get("factor", 1.0)}
    longest = config["max_position_embeddings"]
    name = "original_max_position_embeddings"
    original = config.get(name) or fields.get(name) or longest
    factor = fields.get("factor") or longest / original
    common = {"scaling": scaling, "factor": factor, "original_max_position": original}
    magnitude = fields.get("attention_factor")
    match scaling:
        case RopeScaling.YARN:
            ramp = {name: fields[name] for name in ("beta_fast", "beta_slow", "truncate") if name in fields}
            given = _yarn_magnitude(fields, factor) if magnitude is None else magnitude
            return common | ramp | {"magnitude": given}
        case RopeScaling.LONGROPE:
            if magnitude is None:
                magnitude = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
            divisors = {
                "factors": tuple(fields["short_factor"]),
                "long_factors": tuple(fields["long_factor"]),
            }
            return common | divisors | {"magnitude": magnitude}
        case _:
            return common | {name: fields[name] for name in ("low_freq_factor", "high_freq_factor")}


def mscale(factor: float, weight: float = 1.0) -> float:
    """Factor by which YaRN scales attention's scores for a context extended by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_magnitude(fields: Mapping[str, Any], factor: float) -> float:
    weight, of_all = fields.get("mscale"), fields.get("mscale_all_dim")
    return mscale(factor, weight) / mscale(factor, of_all) if weight and of_all else mscale(factor)
