"""The model's sampling parameters apply over every API, and /v1/models tells them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import httpx
import pytest

from engine.model_config.model_impl import ModelImpl
from router.api.generation.sampling_defaults import SamplingDefaults
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.integration.frontends import Frontends

pytestmark = pytest.mark.asyncio

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_what_a_request_does_not_say_is_the_models(frontends: Frontends) -> None:
    generation = frontends.generation
    before = generation.model
    generation.model = replace(  # type: ignore[misc]
        before,
        impl=ModelImpl.TRANSFORMERS,
        sampling_defaults=SamplingDefaults(temperature=0.5, top_k=7, max_tokens=9),
    )
    try:
        async with httpx.AsyncClient(base_url=frontends.url, timeout=10) as http:
            [card] = (await http.get("/v1/models")).json()["data"]
            assert card["model_impl"] == "transformers"
            assert card["no_images"] == "it is served as a model of text"
            assert card["default_sampling_params"] == {"temperature": 0.5, "top_k": 7, "max_tokens": 9}
            bodies: dict[str, dict[str, Any]] = {
                "/v1/completions": {"prompt": "hi", "max_tokens": 9},
                "/v1/chat/completions": {"messages": MESSAGES},
                "/v1/responses": {"input": "hi"},
                "/v1/messages": {"messages": MESSAGES, "max_tokens": 9, "model": before.name},
            }
            for path, body in bodies.items():
                for more, temperature in (({}, 0.5), ({"temperature": 1.0}, 1.0)):
                    response = await http.post(path, json=body | more)
                    assert response.status_code == 200, response.text
                    sampling = frontends.dispatcher.calls[-1].sampling
                    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (temperature, 7, 9)
                    if path == "/v1/responses":
                        assert response.json()["temperature"] == temperature
        async with grpc.aio.insecure_channel(frontends.target) as channel:
            stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
            for given, temperature in ((sampling_pb2.SamplingParams(), 0.5), (GREEDY, 0.0)):
                request = router_pb2.GenerateRequest(text="hi", sampling=given)
                async for _ in stub.Generate(request):
                    pass
                sampling = frontends.dispatcher.calls[-1].sampling
                assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (temperature, 7, 9)
    finally:
        generation.model = before  # type: ignore[misc]


GREEDY = sampling_pb2.SamplingParams(temperature=0.0)
