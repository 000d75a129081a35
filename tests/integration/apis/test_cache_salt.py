"""The salt of every API, and the tenant where that is configured, separate prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from common.origin import namespace_of
from router.api.access import ApiKeys
from router.request_limits import MAX_CACHE_SALT, RequestLimits
from rpc.router_client import CallFailed, RouterClient
from tests.integration.frontends import Frontends, open_frontends

HI = [{"role": "user", "content": "hi"}]
APIS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"model": "small", "messages": HI, "max_tokens": 5}),
]


@pytest.mark.parametrize(("path", "body"), APIS)
async def test_requests_of_one_salt_have_one_namespace(
    frontends: Frontends, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    for salt in (None, "tenant-7", "tenant-7", "tenant-8"):
        answer = await http.post(path, json=body | {"cache_salt": salt})
        assert answer.status_code == 200, answer.text
    plain, one, same, other = (call.request for call in frontends.dispatcher.calls)
    assert (plain.namespace, plain.cache_salt) == (b"", "")
    assert one.namespace == same.namespace == namespace_of(cache_salt="tenant-7")
    assert one.cache_salt == "tenant-7", "KV events name it"
    assert other.namespace not in (b"", one.namespace)


@pytest.mark.parametrize(("path", "body"), APIS)
@pytest.mark.parametrize("salt", ["", "x" * (MAX_CACHE_SALT + 1), 7])
async def test_a_salt_that_separates_nothing_or_too_much_is_refused(
    frontends: Frontends, http: httpx.AsyncClient, path: str, body: dict[str, Any], salt: object
) -> None:
    refused = await http.post(path, json=body | {"cache_salt": salt})
    assert refused.status_code == 400
    assert "cache_salt" in refused.text
    assert not frontends.dispatcher.calls


async def test_grpc_distinguishes_an_empty_salt_from_none(frontends: Frontends) -> None:
    async with RouterClient(frontends.target) as client:
        for salt in (None, "tenant-7"):
            async for _ in client.generate("hi", max_tokens=3, cache_salt=salt):
                pass
        with pytest.raises(CallFailed, match="cache_salt must not be empty"):
            async for _ in client.generate("hi", max_tokens=3, cache_salt=""):
                pass
    spaces = [call.request.namespace for call in frontends.dispatcher.calls]
    assert spaces == [b"", namespace_of(cache_salt="tenant-7")]


async def test_tenants_are_separated_if_that_is_configured(folder: Path) -> None:
    limits = RequestLimits(separate_tenants=True)
    names = {"key-of-one-tenant": "one", "key-of-another-one": "two"}
    async with (
        open_frontends(folder, limits=limits, keys=ApiKeys(names)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        for key in names:
            for salt in (None, "s"):
                answer = await client.post(
                    "/v1/completions",
                    json={"prompt": "hi", "cache_salt": salt},
                    headers={"authorization": f"Bearer {key}"},
                )
                assert answer.status_code == 200, answer.text
        spaces = [call.request.namespace for call in served.dispatcher.calls]
    assert len(set(spaces)) == len(spaces) == 4
    assert b"" not in spaces
