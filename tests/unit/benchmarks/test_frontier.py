"""The search for the largest rate with enough good answers, and what it is searched over."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.frontier import __main__ as frontier
from benchmarks.frontier.cells import REGIMES, WORKLOADS
from benchmarks.frontier.outcome import Found, cells_of, frontier_table, plot_frontiers
from benchmarks.frontier.search import Search, ShareAt, best_of, find_frontier
from benchmarks.frontier.served import served_variants
from benchmarks.frontier.simulated import simulated_variants
from benchmarks.lib.servers.mode_servers import ModeServers
from router.config.choices import Mode

PRECISE = Search(start=8.0, precision=0.01)


def cliff(at: float) -> ShareAt:
    """A share that falls from 1 to 0 at one rate."""
    return lambda rate: 1.0 if rate <= at else 0.0


@given(at=st.floats(0.05, 5000.0))
def test_the_frontier_is_below_the_cliff_by_no_more_than_the_precision(at: float) -> None:
    found = find_frontier(cliff(at), PRECISE)
    assert found.rate <= at <= found.rate * 1.0101
    assert found.share == 1.0
    assert len(found.probes) < 60


def test_nothing_is_found_where_no_rate_keeps_the_share() -> None:
    found = find_frontier(lambda _: 0.5, PRECISE)
    assert (found.rate, found.share) == (0.0, 0.0)


def test_a_search_that_starts_below_the_frontier_needs_few_probes() -> None:
    assert len(find_frontier(cliff(9.0), PRECISE).probes) <= 7


def test_the_best_variant_wins_and_a_worse_one_costs_one_probe() -> None:
    probes: list[float] = []

    def worse(rate: float) -> float:
        probes.append(rate)
        return cliff(3.0)(rate)

    name, found = best_of({"good": cliff(20.0), "worse": worse, "best": cliff(30.0)}, PRECISE)
    assert name == "best"
    assert found.rate == pytest.approx(30.0, rel=0.011)
    assert len(probes) == 1


def test_two_rates_of_a_seed_draw_the_same_requests() -> None:
    workload = WORKLOADS["mixed"]
    slow, fast = (workload.arrivals(rate, 20.0, seed=3, warm_up=5.0) for rate in (4.0, 8.0))
    assert len(slow) < len(fast)
    for one, other in zip(slow, fast, strict=False):
        assert (one.prompt_tokens, one.max_tokens) == (other.prompt_tokens, other.max_tokens)
        assert one.at == pytest.approx(2 * other.at)


def test_a_shifting_workload_goes_from_long_prompts_to_long_answers() -> None:
    arrivals = WORKLOADS["shifting"].arrivals(20.0, 60.0, seed=1, warm_up=10.0)
    early = [a for a in arrivals if a.at < 15]
    late = [a for a in arrivals if a.at > 65]
    assert sum(a.prompt_tokens for a in early) / len(early) > 3000
    assert sum(a.max_tokens for a in late) / len(late) > 500


def test_a_simulated_share_falls_with_the_rate() -> None:
    (share_at,) = simulated_variants(
        Mode.ADAPTIVE, 2, REGIMES["balanced"], WORKLOADS["mixed"], seconds=4.0, warm_up=1.0, seeds=(1,)
    ).values()
    assert share_at(2.0) > 0.9 > share_at(60.0)


def test_fixed_modes_are_tried_in_every_way() -> None:
    variants = {
        mode: list(
            simulated_variants(
                mode, 4, REGIMES["balanced"], WORKLOADS["mixed"], seconds=1.0, warm_up=0.0, seeds=(1,)
            )
        )
        for mode in Mode
    }
    assert variants[Mode.MIXED] == ["mixed x4", "mixed x4 step 14 ms"]
    assert sorted(variants[Mode.DISAGG]) == ["disagg 1:3", "disagg 2:2", "disagg 3:1"]
    assert variants[Mode.ADAPTIVE] == ["adaptive 2:2"]


FOUND = [
    Found(2, "balanced", "mixed", mode, f"{mode} way", rate, 0.91, ((rate, 0.91),))
    for mode, rate in (("mixed", 10.0), ("disagg", 8.0), ("adaptive", 9.0))
]


def test_the_table_marks_cells_in_which_adaptive_is_behind() -> None:
    text = io.StringIO()
    Console(file=text, width=160).print(frontier_table(FOUND, "a title"))
    assert "0.90 !" in text.getvalue()
    assert cells_of(FOUND)[0].parity == pytest.approx(0.9)


def test_results_are_read_back_and_drawn(tmp_path: Path) -> None:
    assert Found.from_json(FOUND[0].as_json()) == FOUND[0]
    plot_frontiers(FOUND, "a title", tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000


def test_servers_are_tried_in_the_same_ways_as_simulated_ones() -> None:
    options = frontier.make_parser().parse_args(["--mixed-flags", "--page-size 32"])
    options.workers = 3
    servers = ModeServers.of(options, REGIMES["balanced"].objective)
    mixed, disagg, adaptive = (
        served_variants(mode, servers, REGIMES["balanced"]) for mode in ("mixed", "disagg", "adaptive")
    )
    assert list(mixed) == ["mixed x3", "mixed x3 step 14.25 ms"]
    tuned = " ".join(mixed["mixed x3 step 14.25 ms"].flags_for("mixed"))
    assert tuned.endswith("--itl-target-ms 14.25 --page-size 32")
    assert list(disagg) == ["disagg 1:2", "disagg 2:1"]
    (only,) = adaptive.values()
    assert "--ttft-target-ms 500 --itl-target-ms 15" in " ".join(only.flags_for("adaptive"))
