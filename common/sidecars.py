"""Sidecars: rows of numbers that the computation of a KV page has left besides KV, one a token or a page.

A page's rows move with it: to tiers and back, in handoffs, migrations and pulls. A page whose rows are not
all known has none: a request that needs them computes the tokens again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SidecarKind:
    """A kind of rows. All workers that exchange pages have the same kinds."""

    name: str
    """Also the name of the sampling parameter that asks for these rows."""
    most: int
    """Largest value of that parameter for which the rows suffice."""
    row: np.dtype[Any]
    """Dtype of a row, in little-endian order."""
    of_page: bool = False
    """A page has one row, a sum over its tokens, in place of one for each token."""

    @property
    def identity(self) -> str:
        """Equal for kinds whose rows have the same meaning and bytes."""
        return f"{self.name} {self.row.descr} {self.row.shape}"


KEPT_ALTERNATIVES: Final = 1
"""Most likely tokens of which PROMPT_LOGPROBS has the log-probability, besides the prompt's own token."""

PROMPT_LOGPROBS: Final = SidecarKind(
    "prompt_logprobs",
    KEPT_ALTERNATIVES,
    np.dtype([("logprob", "<f4"), ("rank", "<u4"), ("top_id", "<u4"), ("top_logprob", "<f4")]),
)
"""Log-probability of the token at the row's position, from the logits of the token before it. A row depends
only on tokens up to its own, as the page's KV does. The row of a prompt's first token is zero."""

KINDS: Final = (PROMPT_LOGPROBS,)
"""What pages of a model of text own, at least."""
ROUTED_EXPERTS: Final = "routed_experts"


def routed_experts(layers: int, per_token: int, count: int) -> SidecarKind:
    """The experts that computed a token in each layer, of `count`: [layers, per_token], in order of choice.

    The rows of a page come from the computation of its KV. 0: a layer without experts, in all of its places.
    """
    number = np.uint8 if count <= 1 << 8 else np.dtype("<u2")
    return SidecarKind(ROUTED_EXPERTS, 1, np.dtype((number, (layers, per_token))))


def pooled_sums(pooling: str, size: int) -> SidecarKind:
    """Weighted sums of `size` numbers for each token, of which vectors of prompts are made."""
    return SidecarKind(f"pooled_{pooling}", 0, np.dtype(("<f4", (size,))), of_page=True)


Rows: TypeAlias = npt.NDArray[Any]
