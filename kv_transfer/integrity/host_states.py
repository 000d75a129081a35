"""Recurrent states in host memory, head by head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.layout import KVLayout


class HostStates:
    def __init__(self, pool: npt.NDArray[Any], layout: KVLayout) -> None:
        """`pool`: all its bytes; `layout`: of this rank's pages and states."""
        self._pool = pool
        self._layout = layout

    def by_head(self, first: int) -> npt.NDArray[Any]:
        """A copy `[head, bytes]` of the state that begins at page `first`."""
        layout = self._layout
        assert layout.state is not None
        begin = first * layout.page_bytes
        state = self._pool[begin : begin + layout.state_bytes]
        return np.concatenate(layout.state.by_head(state, len(layout.state_heads)), axis=1)
