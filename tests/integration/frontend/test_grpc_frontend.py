"""The gRPC frontend: the same core, with gRPC's own statuses, deadlines and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from router.errors import DeadlineExceeded, Internal, Overloaded, Unavailable
from rpc.baton.v1.router_pb2 import (
    AbortRequest,
    Chat,
    ChatMessage,
    GenerateRequest,
    GenerateResponse,
    GetModelInfoRequest,
    ListModelsRequest,
    ReleaseSessionRequest,
    TokenIds,
    Tool,
)
from rpc.baton.v1.router_pb2_grpc import RouterStub
from rpc.baton.v1.sampling_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    DraftHints,
    SamplingParams,
)
from tests.integration.frontends import Frontends, say

TEXT = "Hello, wörld! 你好 👋🏽 and goodbye."


@pytest.fixture
async def channel(frontends: Frontends) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(frontends.target, options=options) as opened:
        yield opened


@pytest.fixture
def router(channel: grpc.aio.Channel) -> Any:
    return RouterStub(channel)


async def collect(call: Any) -> list[GenerateResponse]:
    return [response async for response in call]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerateRequest(chat=Chat(messages=[ChatMessage(role="user")] * 20_001)), "20001 messages"),
        (GenerateRequest(text="a", sampling=SamplingParams(stop=["a"] * 17)), "more than 16 entries"),
        (GenerateRequest(text="a", sampling=SamplingParams(stop_token_ids=[5] * 257)), "more than 256"),
        (GenerateRequest(chat=Chat(tools=[Tool(name=f"t{i}") for i in range(129)])), "more than 128 tools"),
        (GenerateRequest(chat=Chat(template_options="[" + "[]," * 100_001 + "0]")), "more than 100000 parts"),
    ],
)
async def test_long_lists_are_refused_before_they_are_converted(
    router: Any, request_: GenerateRequest, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
        await collect(router.Generate(request_))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_key_to_release_has_a_bound(router: Any, http: httpx.AsyncClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="512 characters"):
        await router.ReleaseSession(ReleaseSessionRequest(cache_key="k" * 513))
    response = await http.post(f"/v1/sessions/{'k' * 513}/release", json={})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_key"


async def test_text_is_generated_token_by_token(frontends: Frontends, router: Any) -> None:
    responses = await collect(router.Generate(GenerateRequest(text="hi", return_timings=True)))
    tokens = frontends.generation.tokenizer._encode_now(TEXT, False)
    assert "".join(response.text for response in responses) == TEXT
    assert [token for response in responses for token in response.token_ids] == tokens
    last = responses[-1]
    assert last.finish_reason == FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (1, len(tokens))
    assert last.timings.ttft_s == 0.5
    assert not any(response.HasField("usage") for response in responses[:-1])


async def test_a_prompt_may_be_text_or_tokens_or_a_chat(frontends: Frontends, router: Any) -> None:
    chat = Chat(messages=[ChatMessage(role="user", content="Greet me.")])
    await collect(router.Generate(GenerateRequest(text="once upon")))
    await collect(router.Generate(GenerateRequest(token_ids=TokenIds(ids=[5, 6]))))
    await collect(router.Generate(GenerateRequest(chat=chat)))
    text, tokens, conversation = (call.prompt for call in frontends.dispatcher.calls)
    assert text == frontends.generation.tokenizer._encode_now("once upon", True)
    assert tokens == [5, 6]
    assert "<|im_start|>user\nGreet me.<|im_end|>" in frontends.generation.tokenizer._backend.decode(
        conversation, skip_special_tokens=False
    )


async def test_several_completions_come_interleaved_and_numbered(frontends: Frontends, router: Any) -> None:
    frontends.dispatcher.pause_s = 0.001
    responses = await collect(router.Generate(GenerateRequest(text="hi", n=3)))
    texts = ["", "", ""]
    for response in responses:
        texts[response.index] += response.text
    assert texts == [TEXT] * 3
    indices = [response.index for response in responses]
    assert indices != sorted(indices)


async def test_options_that_are_left_out_have_openais_defaults(frontends: Frontends, router: Any) -> None:
    await collect(router.Generate(GenerateRequest(text="hi")))
    await collect(
        router.Generate(GenerateRequest(text="hi", sampling=SamplingParams(temperature=0, seed=-1)))
    )
    default, given = (call.sampling for call in frontends.dispatcher.calls)
    assert (default.temperature, default.top_p, default.max_tokens) == (1.0, 1.0, 255)
    assert (given.temperature, given.seed) == (0.0, -1)


async def test_a_prediction_is_passed_on_as_tokens(frontends: Frontends, router: Any) -> None:
    sampling = SamplingParams(drafts=DraftHints(prediction=[5, 6], off=True))
    await collect(router.Generate(GenerateRequest(text="hi", sampling=sampling)))
    assert frontends.dispatcher.calls[0].sampling.drafts == sampling.drafts


async def test_a_stop_string_ends_the_call(frontends: Frontends, router: Any) -> None:
    sampling = SamplingParams(stop=[" and"])
    responses = await collect(router.Generate(GenerateRequest(text="hi", sampling=sampling)))
    assert "".join(response.text for response in responses) == "Hello, wörld! 你好 👋🏽"
    assert responses[-1].finish_reason == FINISH_REASON_STOP
    await frontends.dispatcher.until_all_given_up()


NAN = float("nan")


@pytest.mark.parametrize(
    ("request_", "status", "param"),
    [
        (GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (GenerateRequest(text=""), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (GenerateRequest(token_ids=TokenIds()), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (GenerateRequest(chat=Chat()), grpc.StatusCode.INVALID_ARGUMENT, "messages"),
        (
            GenerateRequest(chat=Chat(messages=[ChatMessage(role="robot")])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "chat.messages.role",
        ),
        (
            GenerateRequest(chat=Chat(messages=[ChatMessage(role="tool", content="sunny")])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "chat.messages.0.tool_call_id",
        ),
        (GenerateRequest(text="hi", model="nope"), grpc.StatusCode.NOT_FOUND, "model"),
        (GenerateRequest(text="word " * 400), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (GenerateRequest(token_ids=TokenIds(ids=[49152])), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (GenerateRequest(text="hi", n=10**6), grpc.StatusCode.INVALID_ARGUMENT, "n"),
        *(
            (GenerateRequest(text="hi", sampling=sampling), grpc.StatusCode.INVALID_ARGUMENT, param)
            for sampling, param in [
                (SamplingParams(temperature=NAN), "temperature"),
                (SamplingParams(temperature=-1), "temperature"),
                (SamplingParams(top_p=2), "top_p"),
                (SamplingParams(min_p=float("inf")), "min_p"),
                (SamplingParams(top_k=-5), "top_k"),
                (SamplingParams(max_tokens=1 << 31), "max_tokens"),
                (SamplingParams(min_tokens=1 << 32 - 1), "min_tokens"),
                (SamplingParams(logprobs=21), "logprobs"),
                (SamplingParams(stop=[""]), "stop"),
                (SamplingParams(stop_token_ids=[49152]), "stop_token_ids"),
                (SamplingParams(drafts=DraftHints(prediction=[49152])), "drafts.prediction"),
            ]
        ),
    ],
)
async def test_bad_input_gets_the_right_status(
    frontends: Frontends, router: Any, request_: GenerateRequest, status: grpc.StatusCode, param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(request_))
    assert error.value.code() == status
    assert error.value.details()
    trailer = dict(error.value.trailing_metadata())
    assert trailer["baton-param"] == param
    assert trailer["baton-code"]
    assert not frontends.dispatcher.calls
    assert await collect(router.Generate(GenerateRequest(text="hi")))


async def test_a_message_of_ten_megabytes_is_refused(frontends: Frontends, router: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="a" * 10_000_000)))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await collect(router.Generate(GenerateRequest(text="hi")))


@pytest.mark.parametrize("fail_after", [0, 3])
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (DeadlineExceeded("too slow"), grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_a_failure_has_its_status(
    frontends: Frontends, router: Any, failure: Any, status: grpc.StatusCode, fail_after: int
) -> None:
    frontends.dispatcher.failure, frontends.dispatcher.fail_after = failure, fail_after
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="hi")))
    assert error.value.code() == status
    assert error.value.details() == (failure.public_message or failure.message)


@pytest.mark.parametrize("fail_after", [0, 3])
@pytest.mark.parametrize(
    "failure",
    [Unavailable("decode-1 at 10.0.0.7:4711 is lost"), Internal("10.0.0.7"), RuntimeError("10.0.0.7")],
)
async def test_a_server_error_has_a_plain_message_and_is_logged_under_its_request_id(
    frontends: Frontends, router: Any, caplog: pytest.LogCaptureFixture, failure: Any, fail_after: int
) -> None:
    frontends.dispatcher.failure, frontends.dispatcher.fail_after = failure, fail_after
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="hi", request_id="mine")))
    details = error.value.details() or ""
    assert "10.0.0.7" not in details
    assert details.endswith("Request id: mine.")
    [line] = [message for message in caplog.messages if "'mine'" in message]
    assert str(failure) in line


@pytest.mark.parametrize("hang_after", [0, 3])
@pytest.mark.parametrize("n", [1, 2])
async def test_abort_ends_a_request_wherever_it_is(
    frontends: Frontends, router: Any, hang_after: int, n: int
) -> None:
    frontends.dispatcher.hang_after = hang_after
    generating = asyncio.create_task(
        collect(router.Generate(GenerateRequest(text="hi", request_id="mine", n=n)))
    )
    await asyncio.sleep(0.2)
    assert (await router.Abort(AbortRequest(request_id="mine"))).found
    responses = await generating
    assert [r.finish_reason for r in responses[-n:]] == [FINISH_REASON_ABORT] * n
    assert all(response.request_id == "mine" for response in responses)
    await frontends.dispatcher.until_all_given_up()
    assert not (await router.Abort(AbortRequest(request_id="mine"))).found


async def test_an_id_may_be_in_use_only_once(frontends: Frontends, router: Any) -> None:
    frontends.dispatcher.hang_after = 0
    first = asyncio.create_task(collect(router.Generate(GenerateRequest(text="hi", request_id="mine"))))
    await asyncio.sleep(0.2)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="hi", request_id="mine")))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await router.Abort(AbortRequest(request_id="mine"))
    assert await first


async def test_a_cancelled_call_ends_its_request(frontends: Frontends, router: Any) -> None:
    frontends.dispatcher.hang_after = 2
    call = router.Generate(GenerateRequest(text="hi", n=2))
    await call.read()
    call.cancel()
    await frontends.dispatcher.until_all_given_up()


async def test_a_deadline_travels_to_the_workers_and_ends_the_request(
    frontends: Frontends, router: Any
) -> None:
    frontends.dispatcher.hang_after = 2
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="hi"), timeout=2.0))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await frontends.dispatcher.until_all_given_up()
    # gRPC sends the time that is left, rounded up.
    assert 0 < frontends.dispatcher.calls[0].request.timeout_s < 2.05


async def test_the_model_is_described(router: Any) -> None:
    info = await router.GetModelInfo(GetModelInfoRequest())
    assert (info.model, info.mode, info.max_model_len, info.vocab_size) == ("small", "mixed", 256, 49152)
    assert list(info.eos_token_ids) == [2]


async def test_health_follows_readiness(frontends: Frontends, channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for service in ("", "baton.v1.Router"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    listed = (await health.List(health_pb2.HealthListRequest())).statuses
    assert listed["baton.v1.Router"].status == listed[""].status == health_pb2.HealthCheckResponse.SERVING
    frontends.dispatcher.is_ready = False
    watched = health.Watch(health_pb2.HealthCheckRequest())
    async with asyncio.timeout(30):
        async for answer in watched:
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    [answer] = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in answer.list_services_response.service}
    assert {"baton.v1.Router", "grpc.health.v1.Health"} <= names


async def test_logprobs_come_with_their_tokens(frontends: Frontends, router: Any) -> None:
    frontends.dispatcher.script = say(frontends.generation.tokenizer, TEXT)
    sampling = SamplingParams(logprobs=3)
    responses = await collect(router.Generate(GenerateRequest(text="hi", sampling=sampling)))
    assert all(len(response.logprobs) == len(response.token_ids) for response in responses)
    assert len(responses[0].logprobs[0].top_ids) == 3


@pytest.mark.parametrize("request_id", ["x" * 129, "line\nbreak", "\u202e"])
async def test_a_request_id_that_is_long_or_unprintable_is_refused(
    frontends: Frontends, router: Any, request_id: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(router.Generate(GenerateRequest(text="hi", request_id=request_id)))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert request_id not in (error.value.details() or "")
    assert not frontends.dispatcher.calls


async def test_a_request_id_of_128_characters_is_repeated_in_every_response(router: Any) -> None:
    request_id = "é" * 128
    responses = await collect(router.Generate(GenerateRequest(text="hi", request_id=request_id)))
    assert {response.request_id for response in responses} == {request_id}


async def test_no_call_of_a_burst_is_dropped(router: Any) -> None:
    """gRPC itself cancels calls beyond 1,000 that wait for the event loop, at random."""
    models = await asyncio.gather(*(router.ListModels(ListModelsRequest()) for _ in range(4000)))
    assert all(len(found.models) == 1 for found in models)
