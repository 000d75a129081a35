"""Forecasts of the lengths of answers."""

from __future__ import annotations

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.sched.output_lengths import OutputLengths


def request(output: int, *, max_tokens: int = 1000, ignore_eos: bool = False) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return Request(id=0, prompt=[1], sampling=sampling, output=[1] * output)


def test_an_answer_that_only_its_length_can_end_is_forecast_exactly() -> None:
    assert OutputLengths().remaining([request(20, max_tokens=100, ignore_eos=True)])[0] == 80


def test_forecasts_follow_the_answers_that_ended() -> None:
    lengths = OutputLengths()
    before = lengths.remaining([request(0)])[0]
    for _ in range(300):
        lengths.ended(request(40))
    assert 35 < lengths.remaining([request(0)])[0] < 45 < before


def test_a_forecast_never_exceeds_what_is_allowed() -> None:
    assert OutputLengths().remaining([request(90, max_tokens=100)])[0] <= 10
