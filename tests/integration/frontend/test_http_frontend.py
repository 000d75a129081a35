"""The HTTP frontend as the official client sees it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.frontends import Frontends, say

TEXT = "Hello, wörld! 你好 👋🏽 and goodbye."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Greet me."}]
EOS = 2


async def test_a_chat_is_answered(frontends: Frontends, client: openai.AsyncOpenAI) -> None:
    frontends.dispatcher.script = say(frontends.generation.tokenizer, TEXT, eos=EOS)
    answer = await client.chat.completions.create(model="small", messages=MESSAGES)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    [call] = frontends.dispatcher.calls
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(call.prompt)
    assert answer.usage.completion_tokens == len(frontends.generation.tokenizer._encode_now(TEXT, False)) + 1
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == len(call.prompt) // 2
    assert call.sampling.max_tokens == 256 - len(call.prompt)
    assert answer._request_id == answer.id


async def test_a_token_does_not_wait_until_the_headers_are_acknowledged(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    """A client that sent its last request over the same connection takes 40 ms to acknowledge them."""
    await client.models.list()
    [connection] = frontends.http._server.server_state.connections
    assert isinstance(connection.transport, asyncio.Transport)
    served = connection.transport.get_extra_info("socket")
    assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_the_prompt_of_a_chat_is_the_one_that_transformers_makes(
    folder: Path, frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    from transformers import AutoTokenizer

    await client.chat.completions.create(model="small", messages=MESSAGES)
    oracle = AutoTokenizer.from_pretrained(folder)
    expected = oracle.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert frontends.dispatcher.calls[0].prompt == expected


async def test_a_streamed_chat_is_the_same_text_in_pieces(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="small", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    events = [event async for event in stream]
    assert events[0].choices[0].delta.role == "assistant"
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == TEXT
    assert len(pieces) > 10
    assert not any("�" in piece for piece in pieces)
    finishes = [event.choices[0].finish_reason for event in events if event.choices]
    assert finishes[-1] == "length"
    assert set(finishes[:-1]) == {None}
    assert events[-1].usage is not None
    assert all(event.usage is None for event in events[:-1])


async def test_every_shape_of_prompt_reaches_the_dispatcher_as_token_ids(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    encode = frontends.generation.tokenizer._encode_now
    prompts: list[tuple[Any, list[list[int]]]] = [
        ("once upon", [encode("once upon", True)]),
        (["a b", "c"], [encode("a b", True), encode("c", True)]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ]
    for prompt, expected in prompts:
        frontends.dispatcher.calls.clear()
        answer = await client.completions.create(model="small", prompt=prompt)
        assert [call.prompt for call in frontends.dispatcher.calls] == expected
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))


async def test_several_completions_of_several_prompts_have_their_own_indices(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    tokenizer = frontends.generation.tokenizer
    frontends.dispatcher.script = lambda call: say(tokenizer, f"{call.prompt[0]} {call.sampling.seed}")(call)
    for stream in (False, True):
        frontends.dispatcher.calls.clear()
        texts = ["", "", "", ""]
        if stream:
            async for event in await client.completions.create(
                model="small", prompt=[[5], [6]], n=2, seed=11, max_tokens=60, stream=True
            ):
                texts[event.choices[0].index] += event.choices[0].text
        else:
            answer = await client.completions.create(
                model="small", prompt=[[5], [6]], n=2, seed=11, max_tokens=60
            )
            texts = [choice.text for choice in answer.choices]
        seeds = [call.sampling.seed for call in frontends.dispatcher.calls]
        assert seeds[0] == seeds[2] == 11
        assert seeds[1] == seeds[3] != 11
        assert texts == [f"5 {seeds[0]}", f"5 {seeds[1]}", f"6 {seeds[2]}", f"6 {seeds[3]}"]


async def test_a_stop_string_ends_the_answer_on_the_workers_too(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer = await client.completions.create(
        model="small", prompt="hi", max_tokens=60, stop=["zzz", " and g"], extra_body={"timings": True}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello, wörld! 你好 👋🏽", "stop")
    assert answer.choices[0].to_dict()["stop_reason"] == " and g"
    assert answer.to_dict()["timings"]["e2e_s"] == 0.75  # type: ignore[index]
    await frontends.dispatcher.until_all_given_up()
    assert [call.stopped for call in frontends.dispatcher.calls] == [True]


async def test_echo_repeats_the_prompt(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="small", prompt=["hey "], n=2, max_tokens=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["hey Hello"] * 2
    stream = await client.completions.create(
        model="small", prompt="hey ", max_tokens=1, echo=True, stream=True
    )
    assert "".join([event.choices[0].text async for event in stream]) == "hey Hello"


async def test_each_completion_of_a_prompt_echoes_it_with_its_logprobs(client: openai.AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": "small", "prompt": ["hey there", "ho"], "n": 2, "max_tokens": 1}
    ask |= {"echo": True, "logprobs": 1}
    answer = await client.completions.create(**ask)
    assert [choice.text for choice in answer.choices] == ["hey thereHello"] * 2 + ["hoHello"] * 2
    whole = [choice.logprobs for choice in answer.choices]
    for logprobs, choice in zip(whole, answer.choices, strict=True):
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert "".join(logprobs.tokens) == choice.text
        assert logprobs.token_logprobs is not None
        assert logprobs.token_logprobs[0] is None
        assert None not in logprobs.token_logprobs[1:]
    texts, values = [""] * 4, [list[float | None]() for _ in range(4)]
    async for event in await client.completions.create(**ask, stream=True):
        [choice] = event.choices
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            values[choice.index] += choice.logprobs.token_logprobs or []
    assert texts == [choice.text for choice in answer.choices]
    assert values == [logprobs.token_logprobs for logprobs in whole if logprobs is not None]


async def test_logprobs_of_a_chat_name_tokens_and_their_bytes(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="small", messages=MESSAGES, max_tokens=60, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert b"".join(bytes(token.bytes or ()) for token in content).decode() == TEXT
    assert content[0].top_logprobs[0].token == content[0].token == "Hello"
    assert content[0].top_logprobs[1].logprob == -9999.0


async def test_logprobs_of_a_completion_say_where_each_token_begins(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="small", prompt="hi", max_tokens=60, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    named = zip(logprobs.tokens, logprobs.text_offset, strict=True)
    assert all(TEXT.startswith(token, offset) for token, offset in named if not token.startswith("bytes:"))

    stream = await client.completions.create(
        model="small", prompt="hi", max_tokens=60, logprobs=2, stream=True
    )
    streamed: list[int] = []
    async for event in stream:
        if event.choices[0].logprobs is not None:
            streamed += event.choices[0].logprobs.text_offset or []
    assert streamed == logprobs.text_offset


async def test_the_waterfall_comes_when_asked_for(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="small", messages=MESSAGES, extra_body={"timings": True}
    )
    assert answer.to_dict()["timings"]["ttft_s"] == 0.5  # type: ignore[index]
    stream = await client.chat.completions.create(
        model="small", messages=MESSAGES, extra_body={"timings": True}, stream=True
    )
    last = [event async for event in stream][-1].to_dict()
    assert last["timings"]["chunks"][0]["end_s"] == 0.5  # type: ignore[index]
    plain = await client.chat.completions.create(model="small", messages=MESSAGES)
    assert "timings" not in plain.to_dict()


async def test_the_extensions_reach_the_dispatcher(frontends: Frontends, client: openai.AsyncOpenAI) -> None:
    await client.completions.create(
        model="small",
        prompt="hi",
        max_tokens=20,
        extra_body={
            "ignore_eos": True,
            "min_tokens": 3,
            "top_k": 7,
            "min_p": 0.25,
            "repetition_penalty": 1.5,
            "stop_token_ids": [9],
            "priority": 0,
            "timeout": 12.5,
        },
    )
    [call] = frontends.dispatcher.calls
    sampling = call.sampling
    assert (sampling.ignore_eos, sampling.min_tokens, sampling.top_k) == (True, 3, 7)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.25, 1.5)
    assert list(sampling.stop_token_ids) == [9]
    assert (call.request.priority, call.request.timeout_s) == (0, 12.5)


async def test_every_answer_names_its_request(frontends: Frontends) -> None:
    async with httpx.AsyncClient(base_url=frontends.url) as http:
        answers = [
            await http.get("/live"),
            await http.get("/nothing"),
            await http.post("/v1/completions", json={"prompt": ""}),
            await http.post("/v1/completions", json={"prompt": "hi"}),
        ]
        assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
        assert answers[-1].json()["id"] == answers[-1].headers["x-request-id"]


async def test_the_served_model_is_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id for model in (await client.models.list()).data] == ["small"]
    assert (await client.models.retrieve("small")).to_dict()["max_model_len"] == 256
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("large")


async def test_operators_find_what_they_need(frontends: Frontends) -> None:
    async with httpx.AsyncClient(base_url=frontends.url) as client:
        assert (await client.get("/live")).status_code == 200
        for path in ("/ready", "/health"):
            assert (await client.get(path)).json() == {"status": "ready", "models": {"small": "ready"}}
        assert (await client.get("/version")).json().keys() == {"version"}
        assert "baton_example_total 0.0" in (await client.get("/metrics")).text
        [group] = (await client.get("/sd/workers")).json()
        assert group["targets"] == ["10.0.0.1:9000", "10.0.0.2:9000"]
        frontends.dispatcher.is_ready = False
        for path in ("/ready", "/health"):
            assert (await client.get(path)).status_code == 503
        assert (await client.get("/live")).status_code == 200
