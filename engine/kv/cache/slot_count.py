"""How many slots for recurrent states there are. Pure arithmetic."""

from __future__ import annotations

from typing import Final

from engine.errors import EngineError

_SLOTS_PER_REQUEST: Final = 2
"""One for the request, and one for a checkpoint at the end of its prompt."""


def wanted_slots(configured: int | None, max_running_requests: int) -> int:
    """As configured, or enough for every request that may run and as many checkpoints."""
    return _SLOTS_PER_REQUEST * max_running_requests if configured is None else configured


def share_out(blocks: int, slot_blocks: int, wanted: int) -> tuple[int, int]:
    """(pages, slots) from `blocks` blocks of memory, for slots of `slot_blocks` each.

    Slots take at most a half: pages then hold contexts whose attention layers take as much memory as all
    states do. One more slot is for padding. Raises EngineError if there is no room for a request.
    """
    slots = min(wanted, blocks // 2 // slot_blocks - 1)
    if slots < 1:
        raise EngineError(
            f"a recurrent state takes as much memory as {slot_blocks} pages, and there is room for {blocks}"
            " in all; raise --kv-memory-fraction, or use a smaller model or more ranks"
        )
    return blocks - (slots + 1) * slot_blocks, slots
