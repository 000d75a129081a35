"""The part of a model that a rank holds. Pure arithmetic, without torch.

Query heads, key heads, the MLP's features and the vocabulary are split. With more ranks than key heads,
neighbouring ranks hold the same head, as in `kv_transfer.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.expert_spec import ExpertSpec

_USUAL_SIZES: Final = range(1, 9)


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a checkpoint's tensor: concatenated ranges along one axis."""

    axis: int
    extent: int
    """Size of the whole tensor along that axis."""
    stretches: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts."""

    rank: int = 0
    size: int = 1

    @property
    def is_first_rank(self) -> bool:
        """Rank 0 schedules for all ranks, and is the only one that samples."""
        return self.rank == 0

    def of(self, spec: ModelSpec) -> ModelSpec:
        """The shape of this rank's part. Raises UnsupportedModel if there is no such part."""
        if reason := _misfit(spec, self.size):
            usual = ", ".join(str(size) for size in sizes_for(spec))
            raise UnsupportedModel(f"{reason}; the number of ranks can be {usual}")
        experts = spec.experts
        if experts is not None:
            within = self.within_experts(experts)
            experts = replace(
                experts,
                intermediate_size=experts.intermediate_size // within.size,
                shared_size=experts.shared_size // self.size,
                group=self.rank // within.size,
            )
        recurrent = spec.recurrent
        if recurrent is not None:
            heads = recurrent.key_heads // self.size, recurrent.value_heads // self.size
            recurrent = replace(recurrent, key_heads=heads[0], value_heads=heads[1])
        attention = spec.attention
        if other := attention.other_heads:
            attention = replace(attention, other_heads=replace(other, heads=other.heads.of_rank(self.size)))
        return replace(
            spec,
            attention=attention,
            experts=experts,
            recurrent=recurrent,
            num_heads=spec.num_heads // self.size,
            num_kv_heads=max(1, spec.num_kv_heads // self.size),
            intermediate_size=spec.intermediate_size // self.size,
        )

    def within_experts(self, experts: ExpertSpec) -> Shard:
        """This rank among those that hold the same experts."""
        size = self.size // experts.parallel
        return Shard(self.rank % size, size)

    def rows(self, whole: int, part: int, *, blocks: int = 1) -> Cut:
        """`part` of `whole` output features. With fewer parts than ranks, neighbours share one.

        `blocks`: number of projections that are stacked in the tensor, each of which is cut.
        """
        start = (self.rank * (whole // part) // self.size) * part
        stretches = (range(block * whole + start, block * whole + start + part) for block in range(blocks))
        return Cut(0, blocks * whole, tuple(stretches))

    def columns(self, whole: int) -> Cut:
        """An equal part of `whole` input features."""
        part = whole // self.size
        return Cut(1, whole, (range(self.rank * part, (self.rank + 1) * part),))

    def vocabulary(self, whole: int) -> range:
        """Token ids whose logits this rank computes: equal parts, of which the last may be shorter."""
        part = -(-whole // self.size)
        return range(min(whole, self.rank * part), min(whole, (self.rank + 1) * part))


WHOLE: Final = Shard()


def sizes_for(spec: ModelSpec) -> list[int]:
    """Usual numbers of ranks that this model can be split over."""
    return [size for size in _USUAL_SIZES if not _misfit(spec, size)]


def _misfit(spec: ModelSpec, size: int) -> str:
    """Why the model cannot be split over this many ranks; empty if it can."""
    if spec.general is not None and size > 1:
        return f"{size} ranks: transformers' modules, which serve {spec.architecture}, run on one"
    shared = [
        ("attention heads", spec.num_heads, size),
        ("features of the MLP", spec.intermediate_size, size),
    ]
    if experts := spec.experts:
        if size % experts.parallel:
            return f"{size} ranks cannot form {experts.parallel} equal groups for experts"
        shared.append(("features of an expert", experts.intermediate_size, size // experts.parallel))
        shared.append(("features of the shared expert", experts.shared_size, size))
    if spec.recurrent is not None:
        shared.append((f"key heads of a {spec.recurrent.rule.value}", spec.recurrent.key_heads, size))
    for what, count, ranks in shared:
        if count % ranks:
            return f"{count} {what} cannot be shared equally by {ranks} ranks"
    other = spec.attention.other_heads
    for kv_heads in (spec.num_kv_heads, *([] if other is None else [other.heads.count])):
        if kv_heads % size and size % kv_heads:
            return f"{kv_heads} key heads and {size} ranks: neither number divides the other"
    if other is not None and other.heads.count > spec.num_kv_heads and size > spec.num_kv_heads:
        return f"{spec.num_kv_heads} and {other.heads.count} key heads: ranks would share the first ones only"
    return ""
