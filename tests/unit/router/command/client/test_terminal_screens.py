"""`router top` and `router chat`, without a router."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from router.command.client import top
from router.command.client.chat import Conversation
from router.command.client.top import top_screen

TIMINGS = {
    "queue_s": 0.1,
    "prefill_s": 0.4,
    "reserve_s": 0.0,
    "transfer_s": 0.01,
    "first_decode_s": 0.02,
    "ttft_s": 0.5,
    "e2e_s": 2.0,
    "read_s": 0.0,
}


def status(**changes: Any) -> dict[str, Any]:
    return {
        "uptime_s": 75.0,
        "model": {"name": "smollm2", "mode": "disagg", "max_model_len": 2048},
        "requests": {
            "running": 3,
            "waiting": 2,
            "held_back": 1,
            "queued_tokens": 900,
            "predicted_wait_s": 4.5,
            "ended_per_s": 0.5,
        },
        "tokens": {
            "prompt_per_s": 120.0,
            "output_per_s": 31.5,
            "prompt_history": [0.0] * 59,
            "output_history": [float(i) for i in range(59)],
        },
        "ttft_s": {"p50": 0.5, "p90": 0.7, "p99": 1.25, "count": 9},
        "read_s": None,
        "itl_s": None,
        "e2e_s": None,
        "workers": [
            {
                "id": "prefill-0",
                "role": "prefill",
                "state": "ready",
                "running": 1,
                "waiting": 2,
                "pages": {"held": 13, "cached": 25, "in_flight": 12, "quarantined": 0, "free": 50},
                "prompt_tokens_per_s": 120.0,
                "output_tokens_per_s": None,
            },
            {"id": "decode-0", "role": "decode", "state": "unavailable"},
        ],
        "links": [
            {"from": "prefill-0", "to": "decode-0", "handoffs": 4, "bytes": 2e7, "bytes_per_s": 5e6},
        ],
        "pauses": [
            {
                "number": 3,
                "ended_s_ago": 5.0,
                "seconds": 0.118,
                "answers": 12,
                "worker": "decode-0",
                "cause": "gc",
                "parts": {"gc": 0.1},
            }
        ],
        "ended": [
            {
                "id": "0123456789abcdef",
                "outcome": "length",
                "prompt_tokens": 40,
                "output_tokens": 16,
                "timings": TIMINGS,
            }
        ],
        **changes,
    }


def drawn(shown: dict[str, Any]) -> str:
    console = Console(width=80, record=True)
    with console.capture() as capture:
        console.print(top_screen(shown))
    return capture.get()


def test_top_fits_80_columns_without_cutting_anything_off() -> None:
    text = drawn(status())
    assert "…" not in text
    for shown in (
        "1 of 2 workers ready",
        "wait about 4.50 s",
        "KV pages",
        "prefill-0  ready        █▒▓▓····  25%   25%",
        "waiting  3 requests",
        "900 prompt tokens ahead",
        "5.0 MB/s",
        "89abcdef",
        "40 → 16",
        "1.25 s",
        "118.0 ms",
        "gc",
    ):
        assert shown in text


def test_top_fits_80_columns_with_requests_that_failed() -> None:
    failed = {**status()["ended"][0], "outcome": "deadline_exceeded", "prompt_tokens": 3031}
    text = drawn(status(ended=[failed]))
    assert "…" not in text
    assert "deadline" in text
    assert "3,031 → 16" in text


def test_top_counts_one_request_as_one() -> None:
    one = {**status()["requests"], "running": 1, "waiting": 1, "held_back": 0}
    text = drawn(status(requests=one))
    assert "1 requests" not in text
    assert text.count("1 request ") == 2


def test_top_shows_a_router_that_has_served_nothing() -> None:
    text = drawn(status(links=[], pauses=[], ended=[], ttft_s=None))
    assert "KV from" not in text
    assert "prefill-0" in text


def test_top_shows_reads_beside_answers_or_alone() -> None:
    read = {**TIMINGS, "first_decode_s": 0.0, "transfer_s": 0.0, "e2e_s": 0.5, "read_s": 0.5}
    ended = [{**status()["ended"][0], "outcome": "stop", "output_tokens": 0, "timings": read}]
    spread = {"p50": 0.031, "p90": 0.042, "p99": 0.053, "count": 2}
    both, alone = (
        drawn(status(ended=ended, read_s=spread, ttft_s=ttft)) for ttft in (status()["ttft_s"], None)
    )
    for text in (both, alone):
        assert "…" not in text
        assert "40 → read" in text
        assert "read   31.0 ms" in text
    assert "TTFT   500.0 ms" in both
    assert "TTFT   500.0 ms" not in alone


def test_top_without_a_terminal_prints_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("router.command.client.top.api_of", lambda _: SimpleNamespace(get=lambda _: status()))

    assert top.run([]) == 0

    assert "1 of 2 workers ready" in capsys.readouterr().out


def test_a_chat_sends_system_prompt_history_and_parameters() -> None:
    chat = Conversation("smollm2", system="Be brief.")
    chat.set("temperature", "0.5")
    chat.set("stop", "END")
    chat.answered("Hi", "Hello")
    body = chat.request("And?")
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["temperature"], body["stop"], body["timings"]) == (0.5, "END", True)
    chat.set("stop", "")
    assert "stop" not in chat.request("And?")
