"""The inputs of each step, and new weights, from rank 0, which schedules, to the other ranks of a model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import torch

from engine.core.batch.step_inputs import HEADER_INTS, StepInputs
from engine.core.weights import NewWeights
from engine.errors import RankLost
from engine.parallel.communicator import Communicator

_WEIGHTS: Final = -1
"""In place of a step's number of chunks. The next number is the length of what follows."""


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

    def send_weights(self, new: NewWeights) -> None:
        """On rank 0: have all other ranks replace their weights. Raises RankLost."""
        if self._sends:
            encoded = json.dumps([str(new.checkpoint), new.version]).encode()
            described = np.frombuffer(encoded, np.uint8).astype(np.int64)
            header = torch.zeros(HEADER_INTS, dtype=torch.int64)
            header[0], header[1] = _WEIGHTS, len(described)
            self._communicator.broadcast_host(header)
            self._communicator.broadcast_host(torch.from_numpy(described))

    def receive(self) -> StepInputs | NewWeights | None:
        """On other ranks: wait for the next step or for new weights; None once rank 0 has closed.

        Raises RankLost.
        """
        header = torch.zeros(HEADER_INTS, dtype=torch.int64)
        self._communicator.broadcast_host(header)
        if not header[0]:
            return None
        if header[0] == _WEIGHTS:
            described = torch.empty(int(header[1]), dtype=torch.int64)
            self._communicator.broadcast_host(described)
            checkpoint, version = json.loads(described.to(torch.uint8).numpy().tobytes())
            return NewWeights(Path(checkpoint), version)
        payload = torch.empty(StepInputs.payload_ints(header.numpy()), dtype=torch.int64)
        self._communicator.broadcast_host(payload)
        return StepInputs.unpack(header.numpy(), payload.numpy())

    def close(self) -> None:
        """On rank 0: end the other ranks' loops. A rank that has ended already is no error."""
        if self._sends:
            with suppress(RankLost):  # its loop has ended
                self._communicator.broadcast_host(torch.zeros(HEADER_INTS, dtype=torch.int64))
