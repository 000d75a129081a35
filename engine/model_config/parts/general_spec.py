"""What is known of a model that runs transformers' modules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralLayer:
    """One call of transformers' attention interface in a forward pass."""

    heads: int
    kv_heads: int
    head_dim: int
    """Features of a query and of a key."""
    value_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: str | None = None
    """Path of the parameter that has the sinks of all heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralSpec:
    """A class of transformers, its config, and what a pass without weights has shown."""

    class_name: str
    config: str
    """config.json as transformers writes it."""
    body: str
    """Path of the module that ends before the head."""
    layers: tuple[GeneralLayer, ...]
    parameters: int
    """Weights of everything but the embedding and the head."""
    table: tuple[int, int]
    """Size of the embedding, which may be another than that of the head."""
    read_directly: tuple[str, ...] = ()
    """Linear layers whose weights other modules read: they keep the format of the checkpoint."""
    not_by_token: tuple[str, ...] = ()
    """Linear layers applied to other rows than one for each token, such as those of chosen experts."""
    unused: tuple[str, ...] = ()
    """Modules that text does not pass through, such as a vision tower."""
    stacks: bool = False
    """Whether all experts of a layer are one parameter."""
    waits: bool = False
    """Whether a pass waits for the device, as loops over chosen experts do: CUDA graphs cannot have it."""
    eos: int | list[int] | None = None
    """Tokens that end an answer by the class's config."""
    context: int | None = None
    """Longest request, by which LongRoPE chooses its angles; None: the longest that the model supports."""
