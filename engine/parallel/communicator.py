"""What a runner and its model ask of the ranks that they share a model with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from torch import Tensor

from engine.batch.step_inputs import StepInputs
from engine.spec.shard import Shard

__all__ = ["ALONE", "Ranks"]


class Ranks(Protocol):
    """Every rank makes the same calls in the same order; nothing else keeps them in step.

    What takes and gives tensors is enqueued on the device, and waits for nobody on the host.
    """

    @property
    def shard(self) -> Shard:
        """This rank's part."""

    def broadcast_step(self, inputs: StepInputs) -> None:
        """The leader tells the others of the step that all are about to compute."""

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place of this one's."""

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        """For the leader all pieces [S, n] side by side, [S, total]; for others their own. All pieces are
        as wide as the leader's, but for the last ones, which may be narrower.
        """

    def broadcast(self, tokens: Tensor) -> None:
        """The leader's `tokens`, in place of everybody's."""

    def all_reduce_min(self, number: int) -> int:
        """The smallest of all ranks' numbers. Waits for all of them, for as long as they live."""

    def broadcast_ints(self, numbers: Sequence[int]) -> list[int]:
        """The leader's numbers, on every rank. Waits as `all_reduce_min` does."""

    def close(self) -> None:
        """The leader ends the others; then the ranks part."""


class _Alone:
    """The only rank: whatever has to be agreed on is."""

    shard = Shard()

    def broadcast_step(self, inputs: StepInputs) -> None:
        pass

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        return piece

    def broadcast(self, tokens: Tensor) -> None:
        pass

    def all_reduce_min(self, number: int) -> int:
        return number

    def broadcast_ints(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def close(self) -> None:
        pass


ALONE: Final[Ranks] = _Alone()
