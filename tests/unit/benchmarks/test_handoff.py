"""Metrics from a handoff's timings: transfer rate, and the part of it that the client sees."""

from __future__ import annotations

import pytest

from benchmarks.gpu.handoff import Handoff

TIMINGS = {
    "ttft_s": 1.0,
    "reserve_s": 0.01,
    "transfer_s": 0.02,
    "pushes": [
        {"begin_s": 0.5, "end_s": 0.6, "bytes": 3000},
        {"begin_s": 0.55, "end_s": 0.7, "bytes": 1000},
        {"begin_s": 1.0, "end_s": 1.2, "bytes": 4000},
    ],
}


def test_the_rate_counts_only_the_time_in_which_something_was_under_way() -> None:
    handoff = Handoff.of(2048, TIMINGS)
    assert handoff.num_bytes == 8000
    assert handoff.rate == pytest.approx(8000 / 0.4)
    assert handoff.exposed == pytest.approx(0.03)
