from __future__ import annotations

import pytest

from benchmarks.lib.load.client import Record
from benchmarks.weight_update import span_of


def test_tokens_and_pauses_count_where_they_end() -> None:
    one = Record(arrivals=[0.0, 0.1, 0.2, 1.2, 1.3])
    other = Record(arrivals=[1.0, 1.05])
    before, during = span_of([one, other], 0.0, 0.5), span_of([one, other], 0.5, 1.5)
    assert before.tokens_per_s == 6
    assert before.longest_pause_ms == pytest.approx(100, abs=0.1)
    assert during.tokens_per_s == 4
    assert during.longest_pause_ms == pytest.approx(1000, abs=0.1)
    assert span_of([], 0.0, 1.0).longest_pause_ms == 0
