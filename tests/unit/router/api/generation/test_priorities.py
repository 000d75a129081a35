"""Priorities and deadlines: refused where the scheduler does not go by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from router.api.generation.envelope import envelope
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.served_model import ServedModel
from router.api.generation.tenants import CURRENT_TENANT, Tenant
from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest
from router.request_limits import RequestLimits
from tests.integration.frontends import ScriptedDispatcher
from tests.unit.router.api.generation.text.tokenizers import byte_level

MODEL = ServedModel(name="small", path=Path("none"), mode="mixed", max_model_len=64, vocab_size=100)


def make_request(priority: int) -> GenerationRequest:
    return GenerationRequest(
        id="a", prompts=[[1, 2, 3]], options=SamplingOptions(), work=envelope(priority=priority)
    )


def make_generation(limits: RequestLimits = RequestLimits()) -> Generation:  # noqa: B008 (frozen)
    return Generation(MODEL, Tokenizer(byte_level(), vocab_size=400), ScriptedDispatcher(), limits)


@pytest.mark.parametrize("priority", [1, -1, (1 << 31) - 1])
async def test_a_priority_is_refused_by_name(priority: int) -> None:
    with pytest.raises(InvalidRequest, match="priority is not supported") as refusal:
        await make_generation().start(make_request(priority))
    assert (refusal.value.param, refusal.value.code) == ("priority", "unsupported_parameter")
    assert refusal.value.http_status == 400
    assert refusal.value.grpc_status is grpc.StatusCode.INVALID_ARGUMENT


async def test_priority_0_is_always_accepted() -> None:
    await make_generation().start(make_request(0))


@pytest.mark.parametrize("priority", [5, -5, (1 << 31) - 1])
async def test_a_priority_is_taken_where_the_scheduler_goes_by_it(priority: int) -> None:
    await make_generation(RequestLimits(priorities=True)).start(make_request(priority))


async def test_a_priority_beyond_the_protocol_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="priority must be from"):
        await make_generation(RequestLimits(priorities=True)).start(make_request(1 << 31))


@pytest.mark.parametrize(
    ("limit", "priority", "allowed"),
    [(0, 0, True), (0, 1, False), (10, 10, True), (10, -10, True), (10, 11, False), (None, 1000, True)],
)
async def test_a_key_may_set_priorities_up_to_its_limit(
    limit: int | None, priority: int, allowed: bool
) -> None:
    token = CURRENT_TENANT.set(Tenant("key-1", max_priority=limit))
    try:
        starting = make_generation(RequestLimits(priorities=True)).start(make_request(priority))
        if allowed:
            await starting
            return
        with pytest.raises(InvalidRequest, match="This API key may set") as refusal:
            await starting
    finally:
        CURRENT_TENANT.reset(token)
    assert refusal.value.param == "priority"


async def test_a_deadline_for_the_first_token_needs_a_scheduler_that_goes_by_it() -> None:
    request = replace(make_request(0), work=envelope(ttft_deadline_s=2.0))
    await make_generation(RequestLimits(ttft_deadlines=True)).start(request)
    with pytest.raises(InvalidRequest, match="--schedule-policy deadline"):
        await make_generation().start(request)
