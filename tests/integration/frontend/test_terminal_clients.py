"""The clients of the terminal commands against a front end: names of parameters, and TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from router.command.client.api import ApiClient, Unreachable
from router.command.client.chat import Conversation, _Chat
from tests.certificates import Authority
from tests.integration.frontends import Frontends, open_frontends


async def test_a_parameter_that_no_request_has_is_refused_at_once(frontends: Frontends) -> None:
    console = Console(record=True)
    conversation = Conversation("small")
    chat = _Chat(ApiClient(frontends.url), conversation, console, timeline=False)
    for line in ("/set temprature 0", "/set temperature 0.5", "/set max_tokens 7", "/set nonsense"):
        assert await asyncio.to_thread(chat.take, line)
    assert "temprature is no parameter of a request; did you mean temperature?" in console.export_text()
    assert conversation.parameters == {"temperature": 0.5, "max_tokens": 7}


async def test_the_certificates_to_trust_can_be_given(folder: Path, tmp_path: Path) -> None:
    authority = Authority.make("ours")
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(authority.pem)
    async with open_frontends(folder, tls=authority.issue(tmp_path)) as opened:
        found = await asyncio.to_thread(ApiClient(opened.url, ca_file=trusted).get, "/v1/models")
        assert found["data"][0]["id"] == "small"
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(ApiClient(opened.url).get, "/v1/models")


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("none")
    with pytest.raises(ValueError, match="--ca-file"):
        ApiClient("https://127.0.0.1:1", ca_file=empty)
