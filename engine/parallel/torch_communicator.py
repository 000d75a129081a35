"""Collectives between processes: gloo between their hosts, NCCL between their GPUs.

The backends are used directly instead of torch's default process group: that one exists once per process and
pickles objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn import functional

from engine.errors import RankLost
from engine.model_config.shard import Shard

_FIRST_RANK: Final = 0
_NO_TIMEOUT: Final = timedelta(days=3650)
"""For waits that end with rank 0's next step, or with its process: the kernel closes its connections."""


class TorchCommunicator:
    """Implements `Communicator`. One thread of each rank makes all calls."""

    def __init__(self, store: Any, shard: Shard, device: torch.device, *, timeout_s: float) -> None:
        """`timeout_s`: how long one rank waits for another in the middle of a step. Raises RuntimeError."""
        self.shard = shard
        timeout = timedelta(seconds=timeout_s)
        self._host: Any = _gloo(PrefixStore("host", store), shard, timeout)
        self._device = self._host
        if device.type == "cuda":
            self._device = _nccl(PrefixStore("device", store), shard, timeout)
        self._reduce = _options(dist.AllreduceOptions())
        self._gather = _options(dist.GatherOptions(), rootRank=_FIRST_RANK)
        self._broadcast = _options(dist.BroadcastOptions(), rootRank=_FIRST_RANK)

    def all_reduce(self, partial: Tensor) -> Tensor:
        with _rank_errors():
            _wait(self._device.allreduce([partial], self._reduce))
        return partial

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        width = len(Shard(_FIRST_RANK, self.shard.size).vocabulary(total))
        padded = functional.pad(piece, (0, width - piece.shape[1])).contiguous()
        pieces: list[list[Tensor]] = []
        if self.shard.is_first_rank:
            pieces = [[torch.empty_like(padded) for _ in range(self.shard.size)]]
        with _rank_errors():
            _wait(self._device.gather(pieces, [padded], self._gather))
        return torch.cat(pieces[0], dim=1)[:, :total] if pieces else piece

    def broadcast(self, tokens: Tensor) -> None:
        with _rank_errors():
            _wait(self._device.broadcast([tokens], self._broadcast))

    def all_reduce_min(self, number: int) -> int:
        smallest = torch.tensor([number], dtype=torch.int64)
        options = _options(dist.AllreduceOptions(), reduceOp=dist.ReduceOp.MIN, timeout=_NO_TIMEOUT)
        with _rank_errors():
            _wait(self._host.allreduce([smallest], options))
        return int(smallest)

    def broadcast_host(self, numbers: Tensor) -> None:
        options = _options(dist.BroadcastOptions(), rootRank=_FIRST_RANK, timeout=_NO_TIMEOUT)
        with _rank_errors():
            _wait(self._host.broadcast([numbers], options))

    def close(self) -> None:
        # The groups close their connections when they are destroyed.
        self._host = self._device = None


def _gloo(store: Any, shard: Shard, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)


def _nccl(store: Any, shard: Shard, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)


def _options(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(options, name, value)
    # NCCL then works on the current stream, as any kernel does, and can be captured in a graph.
    options.asyncOp = False
    return options


def _wait(work: Any) -> None:
    """For the host's part. On a GPU the work is only enqueued, and nothing blocks."""
    if work is not None:
        work.wait()


@contextmanager
def _rank_errors() -> Iterator[None]:
    """Turn torch.distributed's RuntimeError, raised for any failure of another rank, into RankLost."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RankLost(f"a rank of this worker is gone, or too slow: {reason}") from error
