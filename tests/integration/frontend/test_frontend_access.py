"""Access to the frontends: API keys and limits per client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from router.api.access import ApiKeys
from router.api.page.routes import PAGE_PATHS
from router.request_limits import RequestLimits
from rpc.baton.v1.router_pb2 import AbortRequest, GenerateRequest, GetModelInfoRequest
from rpc.baton.v1.router_pb2_grpc import RouterStub
from tests.integration.frontends import Frontends, code_of, open_frontends

ALICE, BOB = "alice-0123456789", "bob-abcdefghijkl"
PROMETHEUS = "prometheus-01234"
MONITORING = ["/metrics", "/sd/workers", "/status"]
COMPLETIONS = "/v1/completions"
HELLO = {"prompt": "hi"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    keys = ApiKeys({ALICE: "alice", BOB: "bob"}, max_requests=1)
    async with open_frontends(folder, keys=keys) as opened:
        yield opened


@pytest.fixture
async def router(frontends: Frontends) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(frontends.target) as channel:
        yield RouterStub(channel)


class TestHttp:
    @pytest.mark.parametrize("headers", [{}, bearer("wrong-0123456789"), {"authorization": ALICE}])
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", COMPLETIONS),
            ("POST", "/v1/chat/completions"),
            ("POST", "/"),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/sd/workers"),
            ("GET", "/status"),
            ("GET", "/version"),
            ("GET", "/nothing"),
            ("GET", "/live/../metrics"),
            ("GET", "//live"),
        ],
    )
    async def test_without_a_key_there_is_nothing_to_see(
        self, http: httpx.AsyncClient, frontends: Frontends, headers: dict[str, str], method: str, path: str
    ) -> None:
        response = await http.request(method, frontends.url + path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert not frontends.dispatcher.calls

    async def test_a_body_is_not_read_for_a_stranger(self, http: httpx.AsyncClient) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield bytes(1 << 16)

        try:
            response = await http.post(COMPLETIONS, content=endless())
        except httpx.TransportError:
            return  # it hung up on the rest
        assert response.status_code == 401

    @pytest.mark.parametrize("path", ["/live", "/ready", "/health", "/ping"])
    async def test_orchestrators_need_no_key(self, http: httpx.AsyncClient, path: str) -> None:
        assert (await http.get(path)).status_code == 200

    @pytest.mark.parametrize("path", sorted(PAGE_PATHS))
    async def test_the_live_page_needs_no_key_and_loads_nothing_from_other_origins(
        self, http: httpx.AsyncClient, path: str
    ) -> None:
        answer = await http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")

    async def test_the_official_client_brings_its_key(self, frontends: Frontends) -> None:
        base_url = f"{frontends.url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=ALICE) as client:
            assert (await client.completions.create(model="small", prompt="hi")).choices[0].text
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.completions.create(model="small", prompt="hi")

    async def test_timings_do_not_tell_a_client_the_names_of_workers(
        self, http: httpx.AsyncClient, frontends: Frontends
    ) -> None:
        frontends.dispatcher.timings.decode_worker = "decode-7"
        body = {"prompt": "hi", "max_tokens": 60, "timings": True}
        response = await http.post("/v1/completions", json=body, headers=bearer(ALICE))
        assert response.json()["timings"]["ttft_s"] == 0.5
        assert "decode-7" not in response.text

    async def test_anthropics_clients_bring_their_key_in_a_header_of_their_own(
        self, http: httpx.AsyncClient
    ) -> None:
        body = {"model": "small", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        known = await http.post("/v1/messages", json=body, headers={"x-api-key": ALICE})
        assert known.status_code == 200
        unknown = await http.post("/v1/messages", json=body, headers={"x-api-key": "wrong-0123456789"})
        assert unknown.status_code == 401
        assert unknown.json()["error"]["type"] == "authentication_error"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_key_at_its_limit_waits_and_others_do_not(
        self, http: httpx.AsyncClient, frontends: Frontends, stream: bool
    ) -> None:
        frontends.dispatcher.hang_after = 1
        running = asyncio.create_task(
            http.post(COMPLETIONS, json=HELLO | {"stream": stream}, headers=bearer(ALICE))
        )
        while not frontends.dispatcher.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        refused = await http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert (await http.get("/v1/models", headers=bearer(ALICE))).status_code == 200
        frontends.dispatcher.hang_after = None
        assert (await http.post(COMPLETIONS, json=HELLO, headers=bearer(BOB))).status_code == 200
        running.cancel()
        await frontends.dispatcher.calls[0].given_up.wait()
        assert (await http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE))).status_code == 200

    async def test_a_request_that_fails_gives_its_room_back(self, http: httpx.AsyncClient) -> None:
        for _ in range(3):
            bad = await http.post(COMPLETIONS, json={"prompt": ""}, headers=bearer(ALICE))
            assert bad.status_code == 400
        assert (await http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE))).status_code == 200

    @pytest.mark.parametrize("fields", [{"n": 3}, {"prompt": ["a", "b", "c"]}, {"prompt": ["a"], "n": 4}])
    async def test_a_key_s_limit_counts_completions(self, folder: Path, fields: dict[str, Any]) -> None:
        keys = ApiKeys({ALICE: "alice"}, max_requests=3)
        async with (
            open_frontends(folder, keys=keys) as frontends,
            httpx.AsyncClient(base_url=frontends.url) as http,
        ):
            frontends.dispatcher.hang_after = 0
            running = asyncio.create_task(http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE)))
            while not frontends.dispatcher.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            frontends.dispatcher.hang_after = None
            refused = await http.post(COMPLETIONS, json=HELLO | fields, headers=bearer(ALICE))
            fits_when_idle = fields.get("n") != 4
            assert refused.status_code == (429 if fits_when_idle else 400)
            if not fits_when_idle:
                assert refused.json()["error"]["param"] == "n"
            answered = await http.post(COMPLETIONS, json=HELLO | {"n": 2}, headers=bearer(ALICE))
            assert answered.status_code == 200
            running.cancel()
            await frontends.dispatcher.calls[0].given_up.wait()


class TestMonitoring:
    """/metrics and /sd/workers tell of all clients and of the workers' network."""

    @pytest.mark.parametrize("path", MONITORING)
    @pytest.mark.parametrize(
        ("with_keys", "with_metrics_keys", "headers", "status"),
        [
            (False, False, {}, 200),
            (False, True, {}, 401),
            (False, True, bearer(PROMETHEUS), 200),
            (True, False, {}, 401),
            (True, False, bearer(ALICE), 403),
            (True, True, {}, 401),
            (True, True, bearer("wrong-0123456789"), 401),
            (True, True, bearer(ALICE), 403),
            (True, True, bearer(PROMETHEUS), 200),
        ],
    )
    async def test_takes_a_key_of_its_own_where_there_are_keys(
        self,
        folder: Path,
        path: str,
        with_keys: bool,
        with_metrics_keys: bool,
        headers: dict[str, str],
        status: int,
    ) -> None:
        keys = ApiKeys({ALICE: "alice"}) if with_keys else None
        metrics_keys = ApiKeys({PROMETHEUS: "prometheus"}) if with_metrics_keys else None
        async with (
            open_frontends(folder, keys=keys, metrics_keys=metrics_keys) as frontends,
            httpx.AsyncClient(base_url=frontends.url) as http,
        ):
            answer = await http.get(path, headers=headers)
            assert answer.status_code == status
            assert ("www-authenticate" in answer.headers) == (status == 401)

    async def test_its_key_opens_nothing_else(self, folder: Path) -> None:
        keys, metrics_keys = ApiKeys({ALICE: "alice"}), ApiKeys({PROMETHEUS: "prometheus"})
        async with (
            open_frontends(folder, keys=keys, metrics_keys=metrics_keys) as frontends,
            httpx.AsyncClient(base_url=frontends.url) as http,
        ):
            refused = await http.post(COMPLETIONS, json=HELLO, headers=bearer(PROMETHEUS))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
            assert (await http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE))).status_code == 200


class TestWebPages:
    PAGE = "https://chat.example.com"
    PREFLIGHT: ClassVar = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }

    @pytest.mark.parametrize("origins", [(PAGE,), ("http://localhost:3000", PAGE), ("*",)])
    async def test_a_page_of_the_list_may_ask_and_read(self, folder: Path, origins: tuple[str, ...]) -> None:
        keys = ApiKeys({ALICE: "alice"})
        async with (
            open_frontends(folder, keys=keys, cors_origins=origins) as frontends,
            httpx.AsyncClient(base_url=frontends.url) as http,
        ):
            leave = await http.options(COMPLETIONS, headers=self.PREFLIGHT)
            assert leave.status_code == 200
            assert "x-stainless-lang" in leave.headers["access-control-allow-headers"]
            for key in (ALICE, "wrong-0123456789"):  # scripts may read why they are refused, too
                page = {"origin": self.PAGE} | bearer(key)
                answer = await http.post(COMPLETIONS, json=HELLO, headers=page)
                assert answer.headers["access-control-allow-origin"] in (self.PAGE, "*")
                assert "x-request-id" in answer.headers["access-control-expose-headers"]

    @pytest.mark.parametrize("origins", [(), ("https://other.example.com",), ("http://chat.example.com",)])
    async def test_another_page_gets_no_leave(self, folder: Path, origins: tuple[str, ...]) -> None:
        async with (
            open_frontends(folder, cors_origins=origins) as frontends,
            httpx.AsyncClient(base_url=frontends.url) as http,
        ):
            refused = await http.options(COMPLETIONS, headers=self.PREFLIGHT)
            assert refused.is_client_error
            answer = await http.get("/v1/models", headers={"origin": self.PAGE})
            for response in (refused, answer):
                assert "access-control-allow-origin" not in response.headers


class TestGrpc:
    @pytest.mark.parametrize(
        "metadata", [None, [("authorization", "Bearer wrong-0123456789")], [("x-api-key", ALICE)]]
    )
    async def test_without_a_key_every_method_is_closed(
        self, router: Any, frontends: Frontends, metadata: list[tuple[str, str]] | None
    ) -> None:
        calls = [
            router.Generate(GenerateRequest(text="hi"), metadata=metadata).read(),
            router.Abort(AbortRequest(request_id="r"), metadata=metadata),
            router.GetModelInfo(GetModelInfoRequest(), metadata=metadata),
        ]
        for call in calls:
            assert await code_of(call) is grpc.StatusCode.UNAUTHENTICATED
        assert not frontends.dispatcher.calls

    async def test_reflection_is_closed_and_health_open(self, frontends: Frontends) -> None:
        async with grpc.aio.insecure_channel(frontends.target) as channel:
            ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            assert await code_of(ask(iter([request])).read()) is grpc.StatusCode.UNAUTHENTICATED
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1

    async def test_a_key_opens(self, router: Any) -> None:
        metadata = [("authorization", f"Bearer {ALICE}")]
        info = await router.GetModelInfo(GetModelInfoRequest(), metadata=metadata)
        assert info.model == "small"
        assert [r async for r in router.Generate(GenerateRequest(text="hi"), metadata=metadata)]

    async def test_of_several_keys_the_first_counts_as_over_http(
        self, router: Any, http: httpx.AsyncClient
    ) -> None:
        good, wrong = ("authorization", f"Bearer {ALICE}"), ("authorization", "Bearer wrong-0123456789")
        assert (await router.GetModelInfo(GetModelInfoRequest(), metadata=[good, wrong])).model == "small"
        refused = router.GetModelInfo(GetModelInfoRequest(), metadata=[wrong, good])
        assert await code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
        assert (await http.get("/v1/models", headers=[good, wrong])).status_code == 200
        assert (await http.get("/v1/models", headers=[wrong, good])).status_code == 401

    async def test_a_key_at_its_limit_waits_whichever_frontend_it_uses(
        self, router: Any, http: httpx.AsyncClient, frontends: Frontends
    ) -> None:
        frontends.dispatcher.hang_after = 1
        metadata = [("authorization", f"Bearer {ALICE}")]
        running = router.Generate(GenerateRequest(text="hi"), metadata=metadata)
        await running.read()
        second = router.Generate(GenerateRequest(text="hi"), metadata=metadata).read()
        assert await code_of(second) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await http.post(COMPLETIONS, json=HELLO, headers=bearer(ALICE))).status_code == 429
        running.cancel()

    async def test_a_key_s_limit_counts_completions(self, router: Any) -> None:
        metadata = [("authorization", f"Bearer {ALICE}")]
        call = router.Generate(GenerateRequest(text="hi", n=2), metadata=metadata)
        assert await code_of(call.read()) is grpc.StatusCode.INVALID_ARGUMENT

    async def test_a_request_s_id_is_its_client_s_own(self, router: Any, frontends: Frontends) -> None:
        frontends.dispatcher.hang_after = 1
        alice, bob = ([("authorization", f"Bearer {key}")] for key in (ALICE, BOB))
        request = GenerateRequest(request_id="mine", text="hi")
        of_alice, of_bob = router.Generate(request, metadata=alice), router.Generate(request, metadata=bob)
        await asyncio.gather(of_alice.read(), of_bob.read())
        abort = AbortRequest(request_id="mine")
        assert (await router.Abort(abort, metadata=bob)).found
        assert not (await router.Abort(abort, metadata=bob)).found
        assert (await router.Abort(abort, metadata=alice)).found


class TestLimits:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [({"prompt": [1] * 9}, "prompt"), ({"n": 3}, "n"), ({"logprobs": 6}, "logprobs")],
    )
    async def test_a_request_for_more_than_the_limit_is_refused_by_name(
        self, folder: Path, fields: dict[str, Any], param: str
    ) -> None:
        limits = RequestLimits(max_prompt_tokens=8, max_completions=2, max_logprobs=5)
        at_the_limit = {"prompt": [1] * 8, "n": 2, "logprobs": 5}
        async with open_frontends(folder, limits=limits) as frontends, httpx.AsyncClient() as http:
            url = frontends.url + COMPLETIONS
            assert (await http.post(url, json=at_the_limit)).status_code == 200
            refused = await http.post(url, json=at_the_limit | fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
