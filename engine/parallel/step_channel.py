"""The inputs of each step, from rank 0, which schedules, to the other ranks of a model."""

from __future__ import annotations

from contextlib import suppress

import torch

from engine.core.batch.step_inputs import HEADER_INTS, StepInputs
from engine.errors import RankLost
from engine.parallel.communicator import Communicator


class StepChannel:
    """Two broadcasts per step: a header with the sizes, then the arrays. With one rank nothing is sent."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._sends = communicator.shard.is_first_rank and communicator.shard.size > 1

    def send(self, inputs: StepInputs) -> None:
        """On rank 0: start a step on all other ranks. Raises RankLost."""
        if self._sends:
            self._communicator.broadcast_host(torch.from_numpy(inputs.header()))
            self._communicator.broadcast_host(torch.from_numpy(inputs.payload()))

    def receive(self) -> StepInputs | None:
        """On other ranks: wait for the next step; None once rank 0 has closed. Raises RankLost."""
        header = torch.zeros(HEADER_INTS, dtype=torch.int64)
        self._communicator.broadcast_host(header)
        if not header[0]:
            return None
        payload = torch.empty(StepInputs.payload_ints(header.numpy()), dtype=torch.int64)
        self._communicator.broadcast_host(payload)
        return StepInputs.unpack(header.numpy(), payload.numpy())

    def close(self) -> None:
        """On rank 0: end the other ranks' loops. A rank that has ended already is no error."""
        if self._sends:
            with suppress(RankLost):  # its loop has ended
                self._communicator.broadcast_host(torch.zeros(HEADER_INTS, dtype=torch.int64))
