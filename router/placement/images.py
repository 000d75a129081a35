"""Images of a prompt, as work of the vision model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

ImageSpans: TypeAlias = Sequence[tuple[int, int]]
"""First token and end of each image in the prompt, in order."""


@dataclass(frozen=True, slots=True)
class AwaitedRows:
    """Images of a prompt that an encode worker encodes."""

    images: ImageSpans
    seconds: float
    """From now until it has encoded them."""

    def missing_from(self, computed: int) -> int | None:
        """First token that waits for them after `computed` tokens of the prompt; None: none does."""
        left = [first for first, end in self.images if end > computed]
        return max(computed, left[0]) if left else None


_FADING: Final = 0.9
"""Weight of an image relative to the next one."""


def image_tokens(images: ImageSpans, computed: int) -> int:
    """Tokens of the images that are not computed as a whole after `computed` tokens of the prompt."""
    return sum(end - first for first, end in images if end > computed)


class EncodeRates:
    """Measured time per token of an image. A worker that has encoded none gets the rate of all."""

    def __init__(self) -> None:
        self._sums: dict[str | None, tuple[float, float]] = {}
        """Decaying sums of tokens and seconds by worker; None: of all."""

    def observe(self, worker: str, tokens: int, seconds: float) -> None:
        if tokens <= 0 or seconds <= 0:
            return
        for key in (worker, None):
            known_tokens, known_seconds = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = _FADING * known_tokens + tokens, _FADING * known_seconds + seconds

    def remove(self, worker: str) -> None:
        self._sums.pop(worker, None)

    def token_s(self, worker: str) -> float:
        """0 before the first image."""
        tokens, seconds = self._sums.get(worker) or self._sums.get(None) or (1.0, 0.0)
        return seconds / tokens
