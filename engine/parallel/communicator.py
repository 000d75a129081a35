"""Collectives among the ranks that share a model."""

from __future__ import annotations

from typing import Final, Protocol

from torch import Tensor

from engine.model_config.shard import Shard


class Communicator(Protocol):
    """Every rank makes the same calls in the same order; nothing else synchronizes them.

    Operations on device tensors are enqueued and do not block the host. Those on host data block it. All
    raise RankLost when another rank has ended.
    """

    @property
    def shard(self) -> Shard:
        """The part of the model that this rank holds."""

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place of `partial`."""

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        """On rank 0 all pieces [S, n] side by side, [S, total]; on other ranks their own piece.

        All pieces are as wide as that of rank 0, except the last ones, which may be narrower.
        """

    def broadcast(self, tokens: Tensor) -> None:
        """Overwrite `tokens` with those of rank 0."""

    def all_reduce_min(self, number: int) -> int:
        """The smallest number of all ranks. Waits for all of them without a timeout."""

    def broadcast_host(self, numbers: Tensor) -> None:
        """Overwrite `numbers` (int64, on the host) with those of rank 0. Waits for it without a timeout."""

    def close(self) -> None:
        """Close the connections. Other ranks that wait for this one get RankLost."""


class SingleRank:
    """A model that one rank holds: every collective is the identity."""

    shard = Shard()

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        return piece

    def broadcast(self, tokens: Tensor) -> None:
        pass

    def all_reduce_min(self, number: int) -> int:
        return number

    def broadcast_host(self, numbers: Tensor) -> None:
        pass

    def close(self) -> None:
        pass


SINGLE_RANK: Final[Communicator] = SingleRank()
