"""The KV layout of a worker, and its hash, which must be equal for two workers to exchange pages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from common.kv_groups import KVGroup, KVHeads, page_features
from kv_transfer.state_layout import StateLayout

XXH3: Final = "xxh3-64"
"""For CPUs: 14 GB/s per core, where sum64 reaches 1.5."""
SUM64: Final = "sum64"
"""For GPUs; see `sum64.py`."""

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

_FORMAT = "baton-kv-3:page,layer of group,kv,head,token,dim or token,latent"
"""Changes whenever the same fields would describe different bytes."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """A page is `[layer of its group, 2, kv_head, page_size, head_dim]`, contiguous: keys, then values.

    Where groups have heads of different sizes, the rest of the page belongs to no layer.

    Latents are rows of `2 * head_dim` in the same memory: `[layer of its group, page_size, 2 * head_dim]`.
    """

    model: str
    """Identity of the model's shape. Weights are compared by `request_digest`: they may be replaced."""
    dtype: str
    groups: tuple[KVGroup, ...]
    num_kv_heads: int
    """Heads of the whole model, over all shards, in layers of groups that do not say."""
    head_dim: int
    page_size: int
    """Tokens per page."""
    tp_size: int = 1
    tp_rank: int = 0
    scales: tuple[tuple[float, float], ...] = ()
    """For each layer, the factors of stored keys and values; empty: none."""
    computed_in: str | None = None
    """The dtype that they were computed in, if they are stored in another."""
    digest: str = XXH3
    """Algorithm of the page digests, which must be the same on both sides."""
    state: StateLayout | None = None
    """Recurrent state of a request over all shards, with which a handoff ends; None: the model has none."""
    sidecars: tuple[str, ...] = ()
    """Kinds of rows that pages may own beside their KV; see `common.sidecars`."""

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPE_BYTES:
            raise ValueError(f"KV dtype {self.dtype!r} is not one of {', '.join(_DTYPE_BYTES)}")
        for name in ("page_layers", "num_kv_heads", "head_dim", "page_size", "tp_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"tp_rank {self.tp_rank} is outside 0..{self.tp_size - 1}")
        if self.num_kv_heads % self.tp_size and self.tp_size % self.num_kv_heads:
            raise ValueError(
                f"{self.num_kv_heads} kv heads cannot be sharded over {self.tp_size} ranks: "
                "one number must divide the other"
            )
        if self.state is not None and self.state.heads % self.tp_size:
            raise ValueError(f"a state of {self.state.heads} heads cannot be shared by {self.tp_size} ranks")

    @property
    def page_layers(self) -> int:
        """Layers that a page has room for: those of the largest group."""
        return max(len(group.layers) for group in self.groups)

    @property
    def heads_per_shard(self) -> int:
        """KV heads in this shard; with more ranks than heads, neighbouring ranks hold the same head."""
        return max(1, self.num_kv_heads // self.tp_size)

    @property
    def first_head(self) -> int:
        """Global index of this shard's first KV head."""
        return self.tp_rank * self.num_kv_heads // self.tp_size

    @property
    def has_other_heads(self) -> bool:
        """Whether groups have heads of different sizes."""
        return len(set(self._heads)) > 1

    @property
    def _heads(self) -> list[KVHeads]:
        """The heads of each group in this shard."""
        usual = KVHeads(self.num_kv_heads, self.head_dim)
        return [(group.heads or usual).of_rank(self.tp_size) for group in self.groups]

    @property
    def token_bytes(self) -> int:
        """One token of one head, keys or values."""
        return self.token_bytes_of(0)

    def token_bytes_of(self, group: int) -> int:
        """The same, of one group."""
        return self._heads[group].dim * _DTYPE_BYTES[self.dtype]

    @property
    def head_bytes(self) -> int:
        """All tokens of a page for one head of one layer, keys or values: the smallest contiguous piece."""
        return self.page_size * self.token_bytes

    @property
    def rows_per_page(self) -> int:
        """(layer, keys or values, head) triples: how many `head_bytes` make a page."""
        return self.page_bytes // self.head_bytes

    @property
    def page_bytes(self) -> int:
        features = page_features([len(group.layers) for group in self.groups], self._heads)
        return features * self.page_size * _DTYPE_BYTES[self.dtype]

    @property
    def state_heads(self) -> range:
        """Heads of the state in this shard."""
        per_shard = 0 if self.state is None else self.state.heads // self.tp_size
        return range(self.tp_rank * per_shard, (self.tp_rank + 1) * per_shard)

    @property
    def state_bytes(self) -> int:
        """Size of a request's state in this shard."""
        return 0 if self.state is None else len(self.state_heads) * self.state.head_bytes

    @property
    def state_pages(self) -> int:
        """Pages of memory that this shard of a state takes: fewer with more ranks than KV heads."""
        return -(-self.state_bytes // self.page_bytes)

    @property
    def has_windows(self) -> bool:
        return any(group.window is not None for group in self.groups)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens, the last perhaps partly, each with a page in every group."""
        return -(-num_tokens // self.page_size)

    @property
    def hash(self) -> str:
        """Equal for two workers if and only if their pages are interchangeable, rank by rank, as far as equal
        weights computed them."""
        fields = (
            _FORMAT,
            self.model,
            self.dtype,
            self.scales,
            self.computed_in,
            tuple((group.window, group.layers, group.heads) for group in self.groups),
            self.num_kv_heads,
            self.head_dim,
            self.page_size,
            self.tp_size,
            self.digest,
            self.state,
            self.sidecars,
        )
        return hashlib.blake2b(repr(fields).encode(), digest_size=16).hexdigest()
