"""Copies on one level of memory below the pool."""

from __future__ import annotations

from common.block_hash import BlockHash
from common.block_key import block_keys, page_key, root_key
from engine.kv.tiers.level import Level


def test_a_revoked_copy_keeps_its_slot_until_its_last_reader_is_done() -> None:
    level = Level(num_slots=1)
    key, other = (page_key(key, 0) for key in block_keys([1, 2, 3, 4], 2, root_key("model")))
    level.begin(key, BlockHash(1))
    level.complete(key, digest=7)
    slot = level.read(key).slot
    level.read(key)
    level.revoke(key)
    level.release(key)
    assert level.slots_in_use() == [slot]
    assert level.begin(other, BlockHash(2)) is None, "the slot is still read"
    level.release(key)
    assert level.begin(other, BlockHash(2)) == slot
