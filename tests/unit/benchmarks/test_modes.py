"""The comparison of modes over rates: how servers are started, runs summed up, and failures survived."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx
import pytest
from rich.console import Console

from benchmarks.lib.load.client import Record, Target
from benchmarks.lib.load.workload import Work
from benchmarks.lib.outcomes import Run, Spread, arrival_rate, points_of
from benchmarks.lib.plots import plot_modes
from benchmarks.lib.report import Objective, summarize
from benchmarks.lib.servers.mode_servers import ModeServers
from benchmarks.lib.servers.server import ServerFailed
from benchmarks.modes import Results, make_parser, measure_modes, rates_table

OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.2)


def answered(ttft: float, sent: float = 0.0) -> Record:
    arrivals = [sent + ttft, sent + ttft + 0.1]
    return Record(sent=sent, arrivals=arrivals, ended=arrivals[-1], output_tokens=2)


def run(mode: str, rate: float, ttft: float, seed: int = 1) -> Run:
    return Run(mode, rate, seed, 0.9 * rate, summarize([answered(ttft)], OBJECTIVE))


RUNS = [
    run("mixed", 1.0, 0.5),
    run("mixed", 1.0, 1.5, seed=2),
    run("mixed", 2.0, 3.0),
    run("disagg", 1.0, 0.25),
    run("disagg", 2.0, 0.75),
]


def shown(runs: Sequence[Run]) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=200).print(rates_table(points_of(runs), "a title"))
    return [line.split("│") for line in text.getvalue().splitlines() if "mixed" in line or "disagg" in line]


def test_the_table_puts_the_modes_side_by_side_at_each_rate() -> None:
    rows = [[cell.strip() for cell in row] for row in shown(RUNS)]
    assert [(row[0], row[2]) for row in rows] == [
        ("1", "mixed"),
        ("1", "disagg"),
        ("2", "mixed"),
        ("2", "disagg"),
    ]
    assert [row[4] for row in rows] == ["50% (0%–100%)", "100%", "0%", "100%"]


def test_the_table_has_the_rate_that_arrived() -> None:
    assert [row[1].strip() for row in shown(RUNS)] == ["0.90", "0.90", "1.80", "1.80"]


def test_the_rate_that_came_is_that_of_the_gaps_between_requests() -> None:
    assert arrival_rate([10.0, 10.5, 11.0]) == pytest.approx(2.0)
    assert arrival_rate([10.0]) == 0.0


def test_a_spread_is_written_only_where_the_seeds_differ() -> None:
    assert Spread.of([1.0, 1.001]).text(lambda value: f"{value:.1f}") == "1.0"
    assert Spread.of([1.0, 2.0, 6.0]).text(lambda value: f"{value:.0f}") == "3 (1–6)"


def test_a_run_is_read_back_as_it_was_written() -> None:
    assert Run.from_json(RUNS[0].as_json()) == RUNS[0]


def test_the_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "modes.png"
    plot_modes(points_of(RUNS), "a title", path)
    assert path.stat().st_size > 10_000


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are plotted again after every run, which takes longer than the rest of these tests."""
    monkeypatch.setattr("benchmarks.modes.plot_modes", lambda *_: None)


def servers(*arguments: str) -> ModeServers:
    return ModeServers.of(make_parser().parse_args(arguments), OBJECTIVE)


def test_each_mode_gets_its_workers_and_its_own_flags_last() -> None:
    ours = servers("--workers", "4", "--flags", "--itl-target-ms 20 ", "--mixed-flags", "--itl-target-ms 14")
    mixed, disagg, adaptive = (" ".join(ours.flags_for(mode)) for mode in ("mixed", "disagg", "adaptive"))
    assert "--decode-workers 4" in mixed
    assert "--prefill-workers" not in mixed
    assert mixed.endswith("--itl-target-ms 20 --itl-target-ms 14")
    for split in (disagg, adaptive):
        assert "--prefill-workers 1 --decode-workers 3" in split
    assert disagg.endswith("--itl-target-ms 20")
    assert "--ttft-target-ms 1000 --itl-target-ms 200" in adaptive
    assert "--ttft-target-ms" not in mixed + disagg


def test_a_split_without_decode_workers_is_refused_unless_only_mixed_runs() -> None:
    with pytest.raises(SystemExit, match="--prefill-workers 2 of --workers 2"):
        servers("--prefill-workers", "2")
    assert servers("--prefill-workers", "2", "--modes", "mixed").workers == 2


def test_an_unknown_mode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--modes", "mixed,disag"])
    assert "'disag' is no mode" in capsys.readouterr().err


class _Server:
    url = "http://nowhere"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __enter__(self) -> _Server:
        if self.mode == "disagg":
            raise ServerFailed("no GPU left")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModeServers, "server", lambda _, mode: _Server(mode))


def measured(path: Path, *arguments: str, sent: list[Sequence[Work]] | None = None) -> Results:
    def send(target: Target, workload: Sequence[Work]) -> list[Record]:
        if sent is not None:
            sent.append(workload)
        return [answered(0.5, sent=work.arrival_s) for work in workload]

    options = make_parser().parse_args(["--rates", "4,8", "--requests", "5", "--seeds", "1,2", *arguments])
    results = Results(path / "modes", "a title", OBJECTIVE, {})
    if options.append:
        results.take_in_earlier()
    measure_modes(options, ModeServers.of(options, OBJECTIVE), results, send, Console(file=io.StringIO()))
    return results


def test_a_server_that_does_not_start_is_noted_and_the_others_are_measured(tmp_path: Path) -> None:
    results = measured(tmp_path)
    assert results.failures == {"disagg": "no GPU left"}
    assert [(r.mode, r.rate, r.seed) for r in results.runs] == [
        (mode, rate, seed) for mode in ("mixed", "adaptive") for rate in (4, 8) for seed in (1, 2)
    ]


def test_all_modes_get_the_same_requests_and_the_same_warm_up(tmp_path: Path) -> None:
    sent: list[Sequence[Work]] = []
    measured(tmp_path, "--modes", "mixed,adaptive", "--warm-up", "3", sent=sent)
    assert len(sent) == 2 * (1 + 2 * 2)
    assert sent[:5] == sent[5:]
    assert [len(workload) for workload in sent[:5]] == [3, 5, 5, 5, 5]
    assert sent[1] != sent[2]


def test_appending_keeps_earlier_runs_and_replaces_those_done_again(tmp_path: Path) -> None:
    measured(tmp_path, "--modes", "mixed")
    results = measured(tmp_path, "--modes", "mixed,adaptive", "--append")
    assert sorted((r.mode, r.rate, r.seed) for r in results.runs) == sorted(
        (mode, rate, seed) for mode in ("mixed", "adaptive") for rate in (4, 8) for seed in (1, 2)
    )


def test_appending_to_other_settings_is_refused(tmp_path: Path) -> None:
    measured(tmp_path, "--modes", "mixed")
    with pytest.raises(SystemExit, match="--append"):
        Results(tmp_path / "modes", "another title", OBJECTIVE, {}).take_in_earlier()


def test_a_server_that_answers_no_warm_up_request_is_a_failure_of_its_mode(tmp_path: Path) -> None:
    def refuse(_: Target, workload: Sequence[Work]) -> list[Record]:
        return [Record(error="connection refused") for _ in workload]

    options = make_parser().parse_args(["--modes", "mixed", "--warm-up", "2"])
    results = Results(tmp_path / "modes", "a title", OBJECTIVE, {})
    measure_modes(options, ModeServers.of(options, OBJECTIVE), results, refuse, Console(file=io.StringIO()))
    assert "none of 2 requests was answered; the first: connection refused" in results.failures["mixed"]
    assert (tmp_path / "modes.json").exists()


def test_a_server_that_runs_already_gets_the_same_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.modes.only_model", lambda url: "their-model")
    sent: list[Sequence[Work]] = []
    results = measured(tmp_path, "--modes", "mixed", "--against", "vllm=http://there", sent=sent)
    assert {run.mode for run in results.runs} == {"mixed", "vllm"}
    assert sent[:5] == sent[5:]


def test_a_server_to_compare_with_that_is_not_there_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str) -> str:
        raise httpx.ConnectError(f"nobody listens at {url}")

    monkeypatch.setattr("benchmarks.modes.only_model", refuse)
    results = measured(tmp_path, "--modes", "none", "--against", "vllm=http://there")
    assert results.failures == {"vllm": "nobody listens at http://there"}
