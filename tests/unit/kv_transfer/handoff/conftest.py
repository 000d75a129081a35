from __future__ import annotations

import pytest

from tests.unit.kv_transfer.handoff.handoff_pair import Pair


@pytest.fixture
def pair() -> Pair:
    """Handoff 1 is open at the sender."""
    pair = Pair()
    pair.sender.open(1, 0.0, 10.0)
    return pair
