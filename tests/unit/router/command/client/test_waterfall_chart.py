"""The chart of a request's first second, read as a person reads it."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from router.command.client.waterfall_chart import waterfall_chart


def timings(**stages: float) -> dict[str, Any]:
    names = ("queue_s", "prefill_s", "reserve_s", "transfer_s", "first_decode_s", "read_s")
    return {name: stages.get(name, 0.0) for name in names}


def drawn(of: dict[str, Any], width: int = 20) -> list[str]:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(waterfall_chart(of, width=width))
    return capture.get().splitlines()


def bar(lines: list[str], stage: str, width: int = 20) -> str:
    (line,) = (line for line in lines if line.strip().startswith(stage))
    column = lines[0].index("0")
    return line[column : column + width]


def test_stages_follow_each_other_in_proportion_to_their_time() -> None:
    lines = drawn(timings(queue_s=1.0, prefill_s=2.0, first_decode_s=1.0))
    assert bar(lines, "queue") == "█" * 5 + " " * 15
    assert bar(lines, "prefill") == " " * 5 + "█" * 10 + " " * 5
    assert bar(lines, "first decode") == " " * 15 + "█" * 5


def test_a_stage_too_short_to_see_is_still_marked() -> None:
    lines = drawn(timings(prefill_s=10.0, transfer_s=0.001))
    assert bar(lines, "transfer").strip() == "▏"
    assert "1.0 ms" in next(line for line in lines if "transfer" in line)


def test_chunks_and_pushes_are_drawn_where_they_happened() -> None:
    spans = {
        "chunks": [
            {"begin_s": 0.0, "end_s": 1.0, "num_tokens": 512},
            {"begin_s": 1.0, "end_s": 2.0, "num_tokens": 512},
        ],
        "pushes": [
            {"begin_s": 1.0, "end_s": 1.5, "bytes": 3_000_000},
            {"begin_s": 2.0, "end_s": 2.5, "bytes": 1_000_000},
        ],
    }
    lines = drawn(timings(prefill_s=2.0, transfer_s=0.5) | spans, width=10)
    assert bar(lines, "chunks", 10) == "████▓▓▓▓  "
    assert bar(lines, "KV pushes", 10) == "    ██  ▓▓"
    text = " ".join(" ".join(lines).split())  # the summary is as wide as the chart
    assert "1,024 tokens computed in 2 chunks" in text
    assert "4 MB of KV sent, 75% during prefill" in text


def test_a_read_has_no_stages_after_its_prompt() -> None:
    lines = drawn(timings(queue_s=1.0, prefill_s=1.0, read_s=2.0))
    assert bar(lines, "prefill") == " " * 10 + "█" * 10
    assert not any("decode" in line or "transfer" in line for line in lines)


def test_mixed_mode_has_no_spans_to_draw() -> None:
    lines = drawn(timings(prefill_s=1.0))
    assert not any("chunks" in line or "pushes" in line for line in lines)


def test_a_request_that_took_no_time_is_drawn_all_the_same() -> None:
    assert len(drawn(timings())) >= 6
