"""What `router plan` predicts and recommends."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from router.config.choices import Mode
from router.config.flags.command_line import parse
from router.placement import Targets
from simulator.lengths import Fixed, LogNormal, Uniform
from simulator.planner.advice import advise, ranked
from simulator.planner.candidates import Candidate, DoesNotFit, candidates
from simulator.planner.command import run
from simulator.planner.costs import LLAMA_8B
from simulator.planner.hardware import GPUS, H200
from simulator.planner.load import drawn, of_trace
from simulator.planner.model_shape import UnknownModel, shape_of
from simulator.planner.prediction import Prediction, predictions
from simulator.traffic import Arrival

STRICT = Targets(0.5, 0.015)
LLAMA_70B = shape_of("llama-3.1-70b")


# ---------------------------------------------------------------------------------- candidates


def test_every_mode_split_and_tensor_parallelism_is_a_candidate() -> None:
    found = candidates(LLAMA_8B, H200, 4, STRICT, 4096, radix_cache=False)
    named = {(c.mode, c.split, c.ranks) for c in found}
    assert {(Mode.DISAGG, split, 1) for split in ("1:3", "2:2", "3:1")} <= named
    assert {(Mode.MIXED, "x4", 1), (Mode.MIXED, "x2", 2), (Mode.MIXED, "x1", 4)} <= named
    assert {(Mode.ADAPTIVE, "2:2", 1), (Mode.ADAPTIVE, "1:1", 2)} <= named
    assert not any(c.ranks == 4 and c.mode is not Mode.MIXED for c in found)


def test_a_model_that_does_not_fit_one_gpu_gets_tensor_parallelism() -> None:
    found = candidates(LLAMA_70B, GPUS["h100"], 4, STRICT, 4096, radix_cache=False)
    assert {c.ranks for c in found} == {4} or {c.ranks for c in found} == {2, 4}


def test_a_model_that_fits_nowhere_is_refused_with_the_room_there_is() -> None:
    with pytest.raises(DoesNotFit, match="1 GPU a worker leave KV room for 0 tokens"):
        candidates(LLAMA_70B, GPUS["l4"], 1, STRICT, 4096, radix_cache=False)


@pytest.mark.parametrize("candidate", candidates(LLAMA_8B, H200, 4, STRICT, 4096, radix_cache=False))
def test_the_router_understands_the_flags_of_every_candidate(candidate: Candidate) -> None:
    config = parse(["--model", "smollm2", "--device", "cuda", *candidate.flags(STRICT)])
    assert config.mode is candidate.mode
    assert config.num_prefill_workers + config.decode_workers == candidate.workers


# ---------------------------------------------------------------------------------- advice


def prediction(mode: Mode, good: float, **changes: float | bool) -> Prediction:
    found = candidates(LLAMA_8B, H200, 2, STRICT, 4096, radix_cache=False)
    candidate = next(c for c in found if c.mode is mode)
    base = Prediction(candidate, good, 10 * good, 0.0, 0.0, 0.1, 0.4, 0.01, 0.014, is_full=True)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_equal_predictions_recommend_the_simplest() -> None:
    shares = [prediction(mode, good) for mode, good in zip(Mode, (0.985, 0.99, 0.99), strict=True)]
    advice = advise(shares, STRICT, 0.9)
    assert advice.best.candidate.mode is Mode.MIXED
    assert advice.text == "Do not disaggregate: mixed x2 keeps 98.5% good; disagg 1:1 99.0%."


def test_a_split_that_keeps_more_is_recommended() -> None:
    shares = [prediction(mode, good) for mode, good in zip(Mode, (0.7, 0.97, 0.975), strict=True)]
    advice = advise(shares, STRICT, 0.9)
    assert advice.text == "Disaggregate: disagg 1:1 keeps 97.0% good; mixed x2 70.0%."


def test_adaptive_is_recommended_where_no_fixed_mode_comes_near() -> None:
    shares = [prediction(mode, good) for mode, good in zip(Mode, (0.7, 0.8, 0.97), strict=True)]
    advice = advise(shares, STRICT, 0.9)
    assert advice.text.startswith("Let the router place each request: adaptive 1:1 keeps 97.0% good")


def test_where_nothing_meets_the_targets_the_missed_one_is_named() -> None:
    shares = [prediction(mode, 0.4, ttft_misses=0.1, tpot_misses=0.55) for mode in Mode]
    advice = advise(shares, STRICT, 0.9)
    assert not advice.meets
    assert "Nothing keeps 90% good" in advice.text
    assert "55% miss --itl-target-ms 15" in advice.text


def test_what_was_only_screened_is_never_recommended() -> None:
    screened = prediction(Mode.MIXED, 1.0, is_full=False)
    full = prediction(Mode.DISAGG, 0.95)
    assert ranked([screened, full]) == [full, screened]


# ---------------------------------------------------------------------------------- by simulation


def recommended(
    load_of: tuple[object, object], rate: float, targets: Targets, seconds: float = 3.0
) -> Prediction:
    inputs, outputs = load_of
    load = drawn(inputs, outputs, rate, seconds=seconds, warm_up=seconds / 2, seeds=(1,))  # type: ignore[arg-type]
    found = candidates(LLAMA_8B, H200, 2, targets, load.longest, radix_cache=False)
    return advise(predictions(found, load, targets), targets, 0.9).best


def test_short_prompts_at_a_low_rate_need_no_disaggregation() -> None:
    best = recommended((Fixed(256), Fixed(64)), 5.0, STRICT)
    assert best.candidate.mode is Mode.MIXED
    assert best.good == 1.0


def test_long_prompts_and_a_tight_itl_target_recommend_separate_workers() -> None:
    best = recommended((Uniform(3000, 5000), Uniform(200, 300)), 8.0, Targets(1.0, 0.007), seconds=8.0)
    assert best.candidate.mode in (Mode.DISAGG, Mode.ADAPTIVE)
    assert best.good > 0.9


def test_a_mix_of_lengths_near_saturation_recommends_adaptive_or_mixed() -> None:
    best = recommended((LogNormal(2048, 0.8, 16_384), Uniform(128, 512)), 13.0, STRICT)
    assert best.candidate.mode in (Mode.ADAPTIVE, Mode.MIXED)


def test_far_beyond_saturation_nothing_meets_the_targets() -> None:
    load = drawn(Fixed(4096), Fixed(128), 60.0, seconds=4.0, warm_up=1.0, seeds=(1,))
    found = candidates(LLAMA_8B, H200, 1, STRICT, load.longest, radix_cache=False)
    advice = advise(predictions(found, load, STRICT), STRICT, 0.9)
    assert not advice.meets
    assert math.isinf(advice.best.ttft_p99)
    assert "--ttft-target-ms 500" in advice.text


def test_more_candidates_than_finalists_are_screened_first() -> None:
    load = drawn(Fixed(512), Fixed(8), 8.0, seconds=2.0, warm_up=0.5, seeds=(1, 2))
    found = candidates(LLAMA_8B, H200, 8, STRICT, load.longest, radix_cache=False)
    steps: list[tuple[int, int]] = []
    results = predictions(found, load, STRICT, lambda done, total: steps.append((done, total)))
    assert [p.candidate for p in results] == found
    assert 0 < sum(p.is_full for p in results) < len(found)
    assert steps[-1][0] == steps[-1][1]


# ---------------------------------------------------------------------------------- the load


def test_a_trace_begins_at_its_first_request() -> None:
    load = of_trace([Arrival(50.0, 100, 10), Arrival(52.0, 100, 10, (1,)), Arrival(54.0, 100, 20)])
    assert [a.at for a in load.draws[0]] == [0.0, 2.0, 4.0]
    assert (load.longest, load.shares_prefixes) == (120, True)
    assert load.rate == pytest.approx(3 / 4)


def test_requests_of_the_warm_up_do_not_count_in_the_rate() -> None:
    load = drawn(Fixed(10), Fixed(10), 50.0, seconds=20.0, warm_up=10.0, seeds=(1, 2))
    assert load.rate == pytest.approx(50.0, rel=0.1)


# ---------------------------------------------------------------------------------- models


def test_a_model_is_known_by_its_config_alone(tmp_path: Path) -> None:
    from simulator.planner.model_shape import SHAPES

    file = tmp_path / "config.json"
    file.write_text(json.dumps(SHAPES["llama-3.1-8b"]))
    assert shape_of(str(tmp_path)) == shape_of(str(file)) == shape_of("llama-3.1-8b")


def test_an_unknown_model_is_refused_with_the_ways_out() -> None:
    with pytest.raises(UnknownModel, match=r"name a folder with config\.json, or one of llama-3\.1-8b"):
        shape_of("nonesuch")


# ---------------------------------------------------------------------------------- the command

LOAD = ["--prompt-tokens", "512", "--output-tokens", "32", "--rate", "10", "--seconds", "2", "--seeds", "1"]


def test_the_command_prints_a_table_a_recommendation_and_the_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--model", "llama-3.1-8b", "--gpus", "2", *LOAD]) == 0
    out, progress = capsys.readouterr()
    lines = [line for line in progress.splitlines() if line.startswith("simulating ")]
    assert lines[-1].endswith("requests: 100%"), "without a terminal"
    assert len(lines) <= 11
    assert "Predicted by simulation" in out
    assert "measured with TP 1, estimated by a roofline with more" in out
    assert "Do not disaggregate: mixed x2 keeps 100.0% good" in out
    assert "router --model MODEL --mode mixed --decode-workers 2" in out
    assert "MODEL: a folder or hub id with the weights of llama-3.1-8b" in out
    assert "Poisson arrivals at 10 requests/s (" in out


def test_the_command_reads_a_trace_and_reports_what_is_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = (
        json.dumps({"timestamp": 200 * i, "input_length": 1200, "output_length": 20, "hash_ids": [0, i]})
        for i in range(20)
    )
    trace.write_text("\n".join(lines))
    assert run(["--model", "llama-3.1-70b", "--gpus", "4", "--gpu", "h100", "--trace", str(trace)]) in (0, 1)
    out = capsys.readouterr().out
    assert "step times estimated: a roofline, scaled from Llama-3.1-8B" in out
    assert "trace.jsonl, 5.26 requests/s" in out


def test_the_exit_status_says_that_nothing_meets_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--model", "llama-3.1-8b", "--gpus", "1", "--ttft-target-ms", "1", *LOAD]) == 1
    assert "miss --ttft-target-ms 1." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "2", *LOAD], "--model"),
        (["--model", "nonesuch", "--gpus", "2", *LOAD], "--model nonesuch"),
        (["--model", "llama-3.1-8b", "--gpus", "0", *LOAD], "--gpus 0"),
        (["--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "h42", *LOAD], "--gpu"),
        (["--model", "llama-3.1-70b", "--gpus", "1", "--gpu", "l4", *LOAD], "--gpus 1 --gpu l4"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD[:4]], "--rate is missing"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--trace", "x"], "--prompt-tokens"),
        (["--model", "llama-3.1-8b", "--gpus", "2", "--trace", "/nowhere"], "--trace /nowhere"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--prompt-tokens", "many"], "--prompt-tokens"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--prompt-tokens", "200000"], "context 131,072"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--itl-target-ms", "0"], "--itl-target-ms 0"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--good", "2"], "--good 2"),
        (["--model", "llama-3.1-8b", "--gpus", "2", *LOAD, "--rate", "0.1"], "--seconds 2 at --rate 0.1"),
    ],
)
def test_errors_name_the_flag(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
