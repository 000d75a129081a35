"""What a request gets besides tokens."""

from __future__ import annotations

from typing import Protocol, Self


class Output(Protocol):
    """A dataclass of rows, one for each of consecutive tokens of a prompt.

    The protobuf message `Output` has a kind of the same name with fields of the same names. Between the code
    that computes it and the writer of an API nothing looks inside.
    """

    @property
    def position(self) -> int:
        """Position of the first of these tokens in the prompt."""
        ...

    def __len__(self) -> int: ...

    def part(self, first: int, end: int) -> Self:
        """Rows [first, end) of these."""
        ...
