"""The inputs of each step, and new weights and adapters, from rank 0, which schedules, to the other ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeAlias, get_type_hints

import numpy as np
import torch

from engine.core.adapters import Dropping, Filling, Holding, ReadingAhead
from engine.core.batch.step_inputs import HEADER_INTS, StepInputs
from engine.core.weights import NewWeights
from engine.errors import RankLost
from engine.parallel.communicator import Communicator

_ORDER: Final = -1
"""In place of a step's number of chunks. The next number is the length of what follows."""

Order: TypeAlias = NewWeights | ReadingAhead | Holding | Dropping | Filling
"""What all ranks do between two steps."""


_ORDERS: Final = {kind.__name__: kind for kind in (NewWeights, ReadingAhead, Holding, Dropping, Filling)}
_READ: Final[dict[type, Callable[[Any], Any]]] = {str: str, int: int, Path: Path, bytes: bytes.fromhex}
"""How the values of their fields are read."""


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

    def send_order(self, order: Order) -> None:
        """On rank 0: have all other ranks do the same. Raises RankLost."""
        if self._sends:
            encoded = np.frombuffer(_encoded(order), np.uint8).astype(np.int64)
            header = torch.zeros(HEADER_INTS, dtype=torch.int64)
            header[0], header[1] = _ORDER, len(encoded)
            self._communicator.broadcast_host(header)
            self._communicator.broadcast_host(torch.from_numpy(encoded))

    def receive(self) -> StepInputs | Order | None:
        """On other ranks: wait for the next step or order; None once rank 0 has closed.

        Raises RankLost.
        """
        header = torch.zeros(HEADER_INTS, dtype=torch.int64)
        self._communicator.broadcast_host(header)
        if not header[0]:
            return None
        if header[0] == _ORDER:
            encoded = torch.empty(int(header[1]), dtype=torch.int64)
            self._communicator.broadcast_host(encoded)
            return _decoded(encoded.to(torch.uint8).numpy().tobytes())
        payload = torch.empty(StepInputs.payload_ints(header.numpy()), dtype=torch.int64)
        self._communicator.broadcast_host(payload)
        return StepInputs.unpack(header.numpy(), payload.numpy())

    def close(self) -> None:
        """On rank 0: end the other ranks' loops. A rank that has ended already is no error."""
        if self._sends:
            with suppress(RankLost):  # its loop has ended
                self._communicator.broadcast_host(torch.zeros(HEADER_INTS, dtype=torch.int64))


def _encoded(order: Order) -> bytes:
    values = [getattr(order, field.name) for field in fields(order)]
    plain = [value.hex() if isinstance(value, bytes) else value for value in values]
    return json.dumps([type(order).__name__, *plain], default=str).encode()


def _decoded(encoded: bytes) -> Order:
    name, *values = json.loads(encoded)
    kind: type[Order] = _ORDERS[name]
    hints = get_type_hints(kind)
    return kind(*(_READ[hint](value) for hint, value in zip(hints.values(), values, strict=True)))
