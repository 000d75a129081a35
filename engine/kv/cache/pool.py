"""The memory that holds keys and values: one tensor of pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from common.kv_groups import KVGroup, KVHeads, page_features
from engine.kv.cache.state_pool import StatePool
from engine.kv.cache.stored import FP8, Fp8KV
from engine.model_config.parts.recurrent_spec import RecurrentSpec


class KVPool:
    """`num_pages` pages of `page_size` tokens each, all layers of a page side by side.

    A page holds the layers of one group, of any group: all have room for as many layers as the largest. The
    tensor is `[num_pages + 1, layer, 2, kv_head, page_size, head_dim]`, where index 0 of the third axis is
    keys and 1 is values. A page is one contiguous block of `page_bytes`, so handing a page to
    another worker is one copy; each layer's attention sees a strided view of it. The last page is never
    given out: padding is read from it (zeros) and written to it.

    Where groups have heads of different sizes, a page begins with `[layer, 2, kv_head, page_size, head_dim]`
    of its group, and the tensor is `[num_pages + 1, values]`.

    Slots for recurrent states follow in the same memory, for models that have them. A slot is as many blocks
    of `page_bytes` as its state needs, so that a state is handed over like pages.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        groups: Sequence[KVGroup],
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        recurrent: RecurrentSpec | None = None,
        num_slots: int = 0,
        fp8: Fp8KV | None = None,
    ) -> None:
        """`num_kv_heads`, `head_dim`: of groups that do not say. `dtype`: of the keys and values that are
        stored; as they are, or as `fp8` says."""
        self.num_pages = num_pages
        self.groups = tuple(groups)
        self.page_layers = max(len(group.layers) for group in groups)
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.page_size = page_size
        self.dtype = dtype
        self.fp8 = fp8
        # Zeroed, because attention still multiplies masked values: 0 * NaN would be NaN.
        stored = dtype if fp8 is None else FP8
        usual = KVHeads(num_kv_heads, head_dim)
        self.heads = tuple(group.heads or usual for group in groups)
        """Heads of each group's layers."""
        shape: tuple[int, ...] = (num_pages + 1, self.page_layers, 2, num_kv_heads, page_size, head_dim)
        if self.has_other_heads:
            features = page_features([len(group.layers) for group in groups], self.heads)
            shape = (num_pages + 1, features * page_size)
        self.page_bytes = math.prod(shape[1:]) * stored.itemsize
        self.slot_blocks = (
            0 if recurrent is None else -(-recurrent.state_bytes(dtype.itemsize) // self.page_bytes)
        )
        """Blocks of a slot."""
        slots = 0 if recurrent is None else num_slots + 1
        self.num_blocks = num_pages + 1 + slots * self.slot_blocks
        self.memory = torch.zeros((self.num_blocks, self.page_bytes), dtype=torch.uint8, device=device)
        self.tensor = self.memory[: num_pages + 1].view(stored).view(shape)
        self.states: StatePool | None = None
        if recurrent is not None:
            self.states = StatePool(self.memory[num_pages + 1 :].view(slots, -1), recurrent, dtype)
        places = {
            layer: (number, place)
            for number, group in enumerate(groups)
            for place, layer in enumerate(group.layers)
        }
        self.places = [places[layer] for layer in range(len(places))]
        """For each layer: its group, and its place in the group's pages."""
        self._layers = [self._view(group)[:, place] for group, place in self.places]

    @property
    def has_other_heads(self) -> bool:
        """Whether groups have heads of different sizes."""
        return len(set(self.heads)) > 1

    @property
    def scratch_page(self) -> int:
        return self.num_pages

    @property
    def data_ptr(self) -> int:
        """Address of page 0; page i starts `i * page_bytes` after it."""
        return self.tensor.data_ptr()

    def blocks_of(self, slot: int) -> range:
        """The blocks of a slot, counted as pages are."""
        first = self.num_pages + 1 + slot * self.slot_blocks
        return range(first, first + self.slot_blocks)

    def layer(self, index: int) -> torch.Tensor:
        """View `[num_pages + 1, 2, kv_head, page_size, head_dim]` of one layer."""
        return self._layers[index]

    def heads_of(self, index: int) -> KVHeads:
        """The heads of one layer."""
        return self.heads[self.places[index][0]]

    def _view(self, group: int) -> torch.Tensor:
        """All pages, as if they were this group's."""
        if not self.has_other_heads:
            return self.tensor
        heads, layers = self.heads[group], len(self.groups[group].layers)
        shape = (layers, 2, heads.count, self.page_size, heads.dim)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return self.tensor.as_strided((len(self.tensor), *shape), (self.tensor.stride(0), *strides))


def latents(pages: torch.Tensor) -> torch.Tensor:
    """A layer of a pool of latents, in place of keys and values: the same memory as `[page, token, row]`."""
    return pages.view(len(pages), pages.shape[3], -1)
