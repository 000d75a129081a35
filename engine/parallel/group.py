"""Ranks that are processes: gloo between their hosts, NCCL between their GPUs.

Backends are used directly and not through torch's process-wide default group: that one exists once a process,
its objects travel pickled, and it has nothing that is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn import functional

from engine.batch.step_inputs import HEADER_INTS, StepInputs
from engine.errors import RankLost
from engine.spec.shard import Shard

__all__ = ["RankGroup"]

_LEADER: Final = 0
_FOR_EVER: Final = timedelta(days=3650)
"""For waits that end with the leader's next step, or with a process: the kernel closes its connections."""


class RankGroup:
    """Implements `Ranks`. One thread a rank makes all calls."""

    def __init__(self, store: Any, shard: Shard, device: torch.device, *, patience_s: float) -> None:
        """`patience_s`: how long one rank waits for another in the middle of a step. Raises RuntimeError."""
        self.shard = shard
        patience = timedelta(seconds=patience_s)
        self._host: Any = _gloo(PrefixStore("host", store), shard, patience)
        self._device = self._host
        if device.type == "cuda":
            self._device = _nccl(PrefixStore("device", store), shard, patience)
        self._reduce = _options(dist.AllreduceOptions())
        self._gather = _options(dist.GatherOptions(), rootRank=_LEADER)
        self._broadcast = _options(dist.BroadcastOptions(), rootRank=_LEADER)

    def broadcast_step(self, inputs: StepInputs) -> None:
        self._tell(torch.from_numpy(inputs.header()))
        self._tell(torch.from_numpy(inputs.payload()))

    def receive_step(self) -> StepInputs | None:
        """For a rank that follows: waits for the leader's next step; None: there is none."""
        header = torch.zeros(HEADER_INTS, dtype=torch.int64)
        self._tell(header)
        if not header[0]:
            return None
        payload = torch.empty(StepInputs.payload_ints(header.numpy()), dtype=torch.int64)
        self._tell(payload)
        return StepInputs.unpack(header.numpy(), payload.numpy())

    def all_reduce(self, partial: Tensor) -> Tensor:
        with _losing_ranks():
            _done(self._device.allreduce([partial], self._reduce))
        return partial

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        width = len(Shard(_LEADER, self.shard.size).vocabulary(total))
        padded = functional.pad(piece, (0, width - piece.shape[1])).contiguous()
        pieces: list[list[Tensor]] = []
        if self.shard.is_first_rank:
            pieces = [[torch.empty_like(padded) for _ in range(self.shard.size)]]
        with _losing_ranks():
            _done(self._device.gather(pieces, [padded], self._gather))
        return torch.cat(pieces[0], dim=1)[:, :total] if pieces else piece

    def broadcast(self, tokens: Tensor) -> None:
        with _losing_ranks():
            _done(self._device.broadcast([tokens], self._broadcast))

    def all_reduce_min(self, number: int) -> int:
        least = torch.tensor([number], dtype=torch.int64)
        options = _options(dist.AllreduceOptions(), reduceOp=dist.ReduceOp.MIN, timeout=_FOR_EVER)
        with _losing_ranks():
            _done(self._host.allreduce([least], options))
        return int(least)

    def broadcast_ints(self, numbers: Sequence[int]) -> list[int]:
        agreed = torch.tensor(list(numbers), dtype=torch.int64)
        self._tell(agreed)
        result: list[int] = agreed.tolist()
        return result

    def close(self) -> None:
        try:
            if self.shard.is_first_rank:
                self._tell(torch.zeros(HEADER_INTS, dtype=torch.int64))
        except RankLost:
            pass  # it needs no telling
        finally:
            # The connections go with the groups, and with them whatever the others still wait for.
            self._host = self._device = None

    def _tell(self, numbers: Tensor) -> None:
        options = _options(dist.BroadcastOptions(), rootRank=_LEADER, timeout=_FOR_EVER)
        with _losing_ranks():
            _done(self._host.broadcast([numbers], options))


def _gloo(store: Any, shard: Shard, patience: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = patience
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)


def _nccl(store: Any, shard: Shard, patience: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = patience
    return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)


def _options(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(options, name, value)
    # NCCL then works on the current stream, as any kernel does, and can be captured in a graph.
    options.asyncOp = False
    return options


def _done(work: Any) -> None:
    """On a GPU the work is only enqueued, and waits for nothing here."""
    if work is not None:
        work.wait()


@contextmanager
def _losing_ranks() -> Iterator[None]:
    """torch.distributed raises RuntimeError for whatever happens to another rank."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RankLost(f"a rank of this worker is gone, or too slow: {reason}") from error
