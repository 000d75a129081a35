"""The gated delta rule of prompt chunks on Hopper: flashinfer's kernel, several times as fast as ours.

It takes sequences that follow one another and their states in an order of its own, so states are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.device.staging import send
from engine.kernels.delta_net.delta_rule import DeltaShape
from engine.kernels.delta_net.unit_heads import unit_heads
from engine.mixers.recurrence.chunk_stages import ChunkStage

_DIM: Final = 128
"""Features of the heads that it was tried with."""


def suits_hopper(shape: DeltaShape, device: torch.device) -> bool:
    """Whether flashinfer computes such layers, and its compiler is there."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    fits = shape.key_dim == shape.value_dim == _DIM and shape.value_heads % shape.key_heads == 0
    return fits and all(find_spec(name) is not None for name in ("flashinfer", "cutlass"))


@dataclass(frozen=True, slots=True)
class SentStage:
    """A `ChunkStage` on the device: int64 tensors, but for one."""

    rows: Tensor | None
    indptr: Tensor
    sources: Tensor
    empty: Tensor
    """[S, 1, 1, 1] bool: the sequence begins with an empty state."""
    ended: Tensor
    slots: Tensor


def sent_stages(stages: Sequence[ChunkStage], device: torch.device) -> list[SentStage]:
    arrays = [
        array
        for stage in stages
        for array in (
            np.arange(0) if stage.rows is None else stage.rows,
            stage.indptr,
            np.maximum(stage.sources, 0),
            (stage.sources < 0).astype(np.int64),  # one copy has numbers of one type
            stage.ended,
            stage.slots,
        )
    ]
    sent = iter(send(arrays, device))
    found = []
    for stage in stages:
        rows, indptr, sources, empty, ended, slots = (next(sent) for _ in range(6))
        chosen = None if stage.rows is None else rows
        found.append(SentStage(chosen, indptr, sources, empty.bool().view(-1, 1, 1, 1), ended, slots))
    return found


def hopper_chunks(
    rows: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    stages: Sequence[SentStage],
    out: Tensor,
    shape: DeltaShape,
) -> None:
    """As `delta_chunks`, for chunks of the T first rows of `out`."""
    from flashinfer.gdn_prefill import (
        chunk_gated_delta_rule,  # compiles with a library that takes seconds to import
    )

    tensors = (*unit_heads(rows, shape), log_decay.exp(), beta)
    for stage in stages:
        chosen = tensors if stage.rows is None else tuple(tensor[stage.rows] for tensor in tensors)
        before = states[stage.sources].transpose(2, 3).masked_fill(stage.empty, 0.0).contiguous()
        target = out if stage.rows is None else torch.empty_like(chosen[2])
        after = torch.empty_like(before)
        chunk_gated_delta_rule(
            *chosen,
            initial_state=before,
            output_final_state=True,
            cu_seqlens=stage.indptr,
            output=target,
            output_state=after,
            use_cp=False,
        )
        if stage.rows is not None:
            out[stage.rows] = target
        states[stage.slots] = after[stage.ended].transpose(2, 3)
