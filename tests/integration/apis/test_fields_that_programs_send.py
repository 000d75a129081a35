"""Fields that unmodified programs send without being told to: each is honoured, or has no effect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integration.frontends import Frontends, say

HI = {"role": "user", "content": "hi"}
EOS = 2


async def chat(http: httpx.AsyncClient, *messages: Any, **fields: Any) -> Any:
    answer = await http.post("/v1/chat/completions", json={"messages": messages or (HI,)} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompts(frontends: Frontends) -> list[str]:
    backend = frontends.generation.tokenizer._backend
    return [backend.decode(call.prompt, skip_special_tokens=False) for call in frontends.dispatcher.calls]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("logprobs", [None, 1], ids=["plain", "logprobs"])
async def test_the_usage_so_far_is_in_every_event(
    http: httpx.AsyncClient, path: str, logprobs: int | None
) -> None:
    """guidellm and aiperf ask for it."""
    body: dict[str, Any] = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [HI]}
    if logprobs is not None:
        body |= {"logprobs": logprobs} if "prompt" in body else {"logprobs": True, "top_logprobs": logprobs}
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await http.post(path, json=body | {"max_tokens": 5, "stream": True, "stream_options": options})
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts[-1] == 5
    assert counts == sorted(counts)
    assert set(range(1, 6)) <= set(counts)
    assert events[-1]["choices"] == []
    assert all(event["usage"]["prompt_tokens"] > 0 for event in events)


async def test_the_usage_comes_once_unless_it_is_asked_for(http: httpx.AsyncClient) -> None:
    for options, expected in (({"include_usage": True}, {None}), ({"continuous_usage_stats": True}, set())):
        body = {"prompt": "hi", "max_tokens": 3, "stream": True, "stream_options": options}
        answer = await http.post("/v1/completions", json=body)
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        choices = [event for event in events if event["choices"]]
        assert {event["usage"] for event in choices if "usage" in event} == expected


async def test_names_and_cache_marks_change_nothing(frontends: Frontends, http: httpx.AsyncClient) -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    await chat(http)
    await chat(http, HI | {"name": "Ada"})
    await chat(http, {"role": "user", "content": [part]})
    await chat(http, reasoning_effort="high")
    first, *others = prompts(frontends)
    assert others == [first] * 3


async def test_an_answer_may_continue_the_last_message(frontends: Frontends, http: httpx.AsyncClient) -> None:
    begun = {"role": "assistant", "content": "The capital is "}
    await chat(http, HI, begun, add_generation_prompt=False, continue_final_message=True)
    await chat(http, HI, begun, continue_final_message=True)
    await chat(http, HI, begun, add_generation_prompt=False)
    continued, same, closed = prompts(frontends)
    assert continued == same
    assert continued.endswith("<|im_start|>assistant\nThe capital is ")
    assert closed.endswith("The capital is <|im_end|>\n")
    tokenized = {"messages": [HI, begun], "continue_final_message": True}
    tokens = (await http.post("/tokenize", json=tokenized)).json()["tokens"]
    assert tokens == frontends.dispatcher.calls[0].prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True}, "messages"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
    ],
)
async def test_contradictions_are_refused(
    frontends: Frontends, http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/chat/completions", json={"messages": [HI]} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["code"]
    assert not frontends.dispatcher.calls


async def test_special_tokens_are_shown_on_demand(frontends: Frontends, http: httpx.AsyncClient) -> None:
    text = "a<|im_start|>b"
    frontends.dispatcher.script = say(frontends.generation.tokenizer, text, eos=EOS)
    for skip, shown in ((None, "ab"), (True, "ab"), (False, text)):
        answer = await chat(http, skip_special_tokens=skip)
        assert answer["choices"][0]["message"]["content"] == shown


async def test_best_of_may_be_n(http: httpx.AsyncClient) -> None:
    assert len((await chat(http, n=2, best_of=2))["choices"]) == 2
    assert len((await chat(http, best_of=1))["choices"]) == 1
