"""A priority is not honoured yet, so whoever asks for one is told, at every frontend."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from router.errors import InvalidRequest
from router.processing.generation import Generation
from router.processing.generation_request import GenerationRequest
from router.processing.sampling_options import SamplingOptions
from router.processing.served_model import ServedModel

MODEL = ServedModel(name="small", path=Path("none"), mode="mixed", max_model_len=64, vocab_size=100)


def make_request(priority: int) -> GenerationRequest:
    return GenerationRequest(id="a", prompts=[[1, 2, 3]], options=SamplingOptions(), priority=priority)


def make_generation() -> Generation:
    tokenizer = Mock()
    tokenizer.encode = AsyncMock(return_value=[1, 2, 3])
    return Generation(MODEL, tokenizer, Mock())


@pytest.mark.parametrize("priority", [1, -1, 1 << 40])
async def test_a_priority_is_refused_by_name(priority: int) -> None:
    with pytest.raises(InvalidRequest, match="priority is not supported") as refusal:
        await make_generation().start(make_request(priority))
    assert (refusal.value.param, refusal.value.code) == ("priority", "unsupported_parameter")
    assert refusal.value.http_status == 400
    assert refusal.value.grpc_status is grpc.StatusCode.INVALID_ARGUMENT


async def test_priority_0_asks_for_nothing() -> None:
    await make_generation().start(make_request(0))
