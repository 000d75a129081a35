"""Metrics of a run, checked against small cases with known results."""

from __future__ import annotations

import pytest

from benchmarks.lib.load.client import Record
from benchmarks.lib.report import Objective, Percentiles, summarize


def answered(sent: float, *arrivals: float, prompt_tokens: int = 10) -> Record:
    return Record(
        sent=sent,
        arrivals=list(arrivals),
        ended=arrivals[-1],
        prompt_tokens=prompt_tokens,
        output_tokens=len(arrivals),
    )


def test_latencies_are_measured_from_the_send_and_between_pieces() -> None:
    record = answered(10.0, 10.5, 10.6, 10.9)
    assert record.ttft == pytest.approx(0.5)
    assert list(record.itls) == pytest.approx([0.1, 0.3])
    assert record.tpot == pytest.approx(0.2)
    assert record.e2e == pytest.approx(0.9)


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    record = answered(0.0, 1.0)
    assert record.tpot == 0.0
    assert summarize([record]).tpot == Percentiles.of([])


def test_rates_cover_the_time_from_the_first_send_to_the_last_end() -> None:
    summary = summarize([answered(0.0, 1.0, 2.0), answered(2.0, 3.0, 4.0)])
    assert summary.duration_s == 4.0
    assert summary.request_rate == 0.5
    assert summary.output_rate == 1.0
    assert summary.total_rate == 6.0


def test_failures_are_counted_and_touch_no_latency() -> None:
    failed = Record(sent=0.0, ended=100.0, error="HTTP 500: oops")
    summary = summarize([answered(0.0, 1.0, 2.0), failed])
    assert (summary.succeeded, summary.failed) == (1, 1)
    assert summary.ttft.max == 1.0


def test_goodput_counts_only_answers_that_met_every_objective() -> None:
    quick = answered(0.0, 0.1, 0.2)
    late = answered(0.0, 0.9, 1.0)
    slow = answered(0.0, 0.1, 2.0)
    objective = Objective(ttft_s=0.5, tpot_s=0.5)
    summary = summarize([quick, late, slow], objective)
    assert summary.good == 1
    assert summary.goodput == pytest.approx(1 / 2.0)


def test_one_long_pause_spoils_an_answer_whose_mean_is_good() -> None:
    steady = answered(0.0, 0.1, 0.2, 0.3, 0.4)
    halting = answered(0.0, 0.1, 0.11, 0.12, 0.4)
    summary = summarize([steady, halting], Objective(tpot_s=0.11, pause_s=0.2))
    assert summary.good == 1


def test_a_run_without_requests_is_all_zeros() -> None:
    summary = summarize([])
    assert summary.succeeded == 0
    assert summary.output_rate == 0.0


def test_json_carries_the_derived_rates() -> None:
    json = summarize([answered(0.0, 1.0, 2.0)]).as_json()
    assert json["output_rate"] == 1.0
    assert json["ttft"]["p50"] == 1.0
