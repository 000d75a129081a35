"""What an image processor says about itself and about an image. Imports no library of images."""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass

from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """What the processor's texts consist of."""

    placeholder: str
    """Stands for an image in a rendered conversation."""
    row: str
    """Token of a row of the vision model, in the text that replaces the placeholder."""
    row_id: int

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    text: str
    """Replaces the placeholder."""
    rows: int
    """Tokens in `text` that are rows."""
    keys: array[int]
    """Keys of the positions from the first of its rows to the last; see `common.origin`."""
    item: worker_pb2.MediaItem
    """Without its place in the prompt."""
