"""The worked examples of other systems' documents, number for number, under the presets that name them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import Batching, SchedulerConfig
from engine.errors import UnservableRequest
from engine.sched.presets import PRESETS, Preset
from tests.unit.engine.sched.planning import Planner, request

CHUNKING = [Preset.BATON, Preset.SGLANG, Preset.VLLM]
"""Presets with one budget for a whole step."""


@pytest.mark.parametrize("preset", CHUNKING)
@pytest.mark.parametrize(
    ("tokens", "budget", "chunks"),
    [
        (10_000, 2048, [2048] * 4 + [1808]),
        (1_000, 256, [256] * 3 + [232]),
        (10, 2048, [10]),
    ],
)
def test_a_prompt_is_cut_into_full_chunks_and_a_rest(
    preset: Preset, tokens: int, budget: int, chunks: list[int]
) -> None:
    planner = Planner(preset, chunk_budget=budget)
    planner.submit(request(1, tokens))
    assert planner.chunks_of(1) == chunks


@pytest.mark.parametrize("preset", CHUNKING)
@pytest.mark.parametrize(("tokens", "budget", "steps"), [(50_000, 4096, 13), (100_000, 2048, 49)])
def test_the_number_of_steps_of_a_long_prompt(preset: Preset, tokens: int, budget: int, steps: int) -> None:
    planner = Planner(preset, chunk_budget=budget)
    planner.submit(request(1, tokens))
    assert len(planner.chunks_of(1)) == steps


@pytest.mark.parametrize(
    ("preset", "chunk"), [(Preset.SGLANG, 2040), (Preset.VLLM, 2040), (Preset.BATON, 2032)]
)
def test_decodes_come_out_of_the_budget_and_only_pages_of_one_token_leave_no_rounding(
    preset: Preset, chunk: int
) -> None:
    planner = Planner(preset, chunk_budget=2048, batching=Batching.MIXED)
    planner.decoding(8)
    planner.submit(request(1, 10_000))
    assert planner.step().chunks[0].length == chunk


@pytest.mark.parametrize("preset", [Preset.SGLANG, Preset.VLLM])
def test_a_long_prompt_beside_ten_decodes_takes_74_steps(preset: Preset) -> None:
    """The guide says 73 steps and a rest of 1,500: 150,000 - 73 * 2,038 = 1,226, which takes one more."""
    planner = Planner(preset, chunk_budget=2048, batching=Batching.MIXED)
    planner.decoding(10)
    planner.submit(request(1, 150_000))
    assert planner.chunks_of(1) == [2038] * 73 + [1226]


def test_a_threshold_cuts_one_prompt_though_the_step_has_room() -> None:
    planner = Planner(Preset.VLLM, chunk_budget=8192, long_prefill_token_threshold=5120)
    planner.submit(request(1, 10_000))
    assert planner.chunks_of(1) == [5120, 4880]


@pytest.mark.parametrize(("preset", "chunk"), [(Preset.VLLM, 5242), (Preset.BATON, 5232)])
def test_the_automatic_threshold_is_four_percent_of_the_context(preset: Preset, chunk: int) -> None:
    planner = Planner(preset, context=131_072, chunk_budget=8192, long_prefill_token_threshold="auto")
    planner.submit(request(1, 20_000))
    assert planner.step().chunks[0].length == chunk


def test_a_threshold_below_a_page_cuts_prompts_into_single_pages() -> None:
    """4% of a context of 300 tokens are 12, and a chunk of 12 would never end a page."""
    planner = Planner(Preset.BATON, context=300, chunk_budget=64, long_prefill_token_threshold="auto")
    planner.submit(request(1, 40))
    assert planner.chunks_of(1) == [16, 16, 8]


@pytest.mark.parametrize(("preset", "second"), [(Preset.SGLANG, 0), (Preset.VLLM, 2048)])
def test_a_second_long_prompt_waits_under_sglang_and_runs_under_vllm(preset: Preset, second: int) -> None:
    planner = Planner(preset, chunk_budget=4096, long_prefill_token_threshold=2048)
    planner.submit(request(1, 10_000), request(2, 10_000))
    assert planner.chunks(1, 2)[0] == [2048, second]


def test_sglang_computes_exactly_one_chunked_request_at_a_time() -> None:
    planner = Planner(Preset.SGLANG, chunk_budget=2048)
    planner.submit(request(1, 5000), request(2, 5000), request(3, 100))
    assert planner.chunks(1, 2, 3) == [
        [2048, 0, 0],
        [2048, 0, 0],
        [904, 1144, 0],
        [0, 2048, 0],
        [0, 1808, 100],
    ]


@pytest.mark.parametrize("preset", CHUNKING)
def test_a_whole_prompt_is_followed_by_a_chunk_of_the_next(preset: Preset) -> None:
    """SGLang's guide calls this step impossible; its code compares with max-prefill-tokens, not the chunk."""
    planner = Planner(preset, chunk_budget=2048, page_size=1)
    planner.submit(request(1, 100), request(2, 5000))
    assert planner.chunks(1, 2)[0] == [100, 1948]


@pytest.mark.parametrize("preset", Preset)
def test_prompts_on_a_cached_system_prompt_compute_their_own_tokens_alone(preset: Preset) -> None:
    system = [7] * 10_000
    planner = Planner(preset, radix_cache=True, context=400_000)
    planner.submit(request(0, 10_001, prefix=system))
    planner.chunks(0)
    planner.submit(*(request(id, 10_500, prefix=system) for id in range(1, 21)))
    steps = planner.chunks(*range(1, 21))
    assert [sum(step[i] for step in steps) for i in range(20)] == [500] * 20


def test_a_prompt_over_the_budget_waits_with_chunking_off() -> None:
    planner = Planner(Preset.VLLM, chunk_budget=2048, chunked_prefill=False)
    planner.decoding(8, max_tokens=4)
    planner.submit(request(1, 2048), request(2, 10))
    assert planner.chunks(1, 2)[:2] == [[0, 0], [0, 0]], "2,040 are left, and nothing overtakes it"
    assert planner.ended[-2:] == [1, 2]


def test_a_prompt_that_never_fits_into_a_step_is_refused_with_chunking_off() -> None:
    planner = Planner(Preset.VLLM, chunk_budget=2048, chunked_prefill=False)
    with pytest.raises(UnservableRequest, match="2049 tokens never fits into a step of 2048"):
        planner.submit(request(1, 2049))


def test_sglang_without_chunks_takes_whole_prompts_up_to_max_prefill_tokens_and_a_longer_one_alone() -> None:
    planner = Planner(Preset.SGLANG, chunk_budget=None, chunked_prefill=False)
    planner.submit(request(1, 10_000), request(2, 6_000), request(3, 40_000), request(4, 10))
    assert planner.chunks(1, 2, 3, 4) == [
        [10_000, 6_000, 0, 0],
        [0, 0, 40_000, 0],
        [0, 0, 0, 10],
    ]


def test_sglang_does_not_mix_unless_told_to() -> None:
    planner = Planner(Preset.SGLANG, chunk_budget=2048)
    planner.decoding(8)
    planner.submit(request(1, 5000, 2))
    steps = [[chunk.length for chunk in planner.step().chunks] for _ in range(4)]
    assert steps == [[2048], [2048], [904], [1] * 9]


@pytest.mark.parametrize("batching", [Batching.PREFILL_FIRST, Batching.ALTERNATING])
def test_the_last_token_of_a_prompt_does_not_wait_for_a_step_of_decodes(batching: Batching) -> None:
    planner = Planner(Preset.SGLANG, chunk_budget=256, batching=batching)
    planner.submit(request(1, 257), request(2, 2000))
    assert planner.chunks(1, 2)[:2] == [[256, 0], [1, 255]]


def kinds(planner: Planner, steps: int) -> str:
    """P for a step of prompts, D for one of decodes, M for both."""
    planned = [{c.length > 1 for c in planner.step().chunks} for _ in range(steps)]
    return "".join("M" if len(kinds) == 2 else "P" if True in kinds else "D" for kinds in planned)


@pytest.mark.parametrize(
    ("batching", "order"),
    [
        (Batching.PREFILL_FIRST, "PPPPPPDD"),
        (Batching.ALTERNATING, "PDPDPDPD"),
        (Batching.MIXED, "MMMMMMDD"),
    ],
)
def test_prefill_repeats_until_nothing_waits_or_takes_turns_with_decodes(
    batching: Batching, order: str
) -> None:
    planner = Planner(Preset.SGLANG, chunk_budget=256, batching=batching)
    planner.decoding(2)
    if batching is Batching.ALTERNATING:
        planner.step()
    planner.submit(request(1, 1000, 9), request(2, 500, 9))
    assert kinds(planner, 8) == order


def test_roseinfer_advances_every_prompt_by_its_chunk_in_the_prefill_half_of_an_iteration() -> None:
    planner = Planner(Preset.ROSEINFER, long_prefill_token_threshold=256)
    planner.decoding(2)
    planner.submit(request(1, 1000), request(2, 300), request(3, 600))
    iterations = []
    while len(planner.ended) < 3:
        decode, prefill = planner.step(), planner.step()
        assert [c.length for c in decode.chunks] == [1, 1]
        iterations.append([c.length for c in prefill.chunks])
    assert iterations == [[256, 256, 256], [256, 44, 256], [256, 88], [232]]


@pytest.mark.parametrize("preset", CHUNKING)
def test_requests_that_ask_for_logprobs_share_steps_with_others(preset: Preset) -> None:
    planner = Planner(preset, chunk_budget=256, batching=Batching.MIXED)
    planner.decoding(2)
    asking = request(1, 1000)
    asking.sampling = replace(asking.sampling, logprobs=5)
    planner.submit(asking)
    assert kinds(planner, 3) == "MMM"


def test_presets_switch_off_what_other_systems_do_not_have() -> None:
    for preset in set(Preset) - {Preset.BATON}:
        config = PRESETS[preset].scheduler
        assert not config.share_prefixes
        assert not config.hold_long_chunks
        assert config.itl_target_s is None
        assert config.forecast is not SchedulerConfig().forecast
    assert PRESETS[Preset.SGLANG].page_size == 1
    assert PRESETS[Preset.BATON].scheduler == SchedulerConfig()
