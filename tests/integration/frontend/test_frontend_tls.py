"""TLS of the frontends."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import httpx
import pytest

from rpc.baton.v1.router_pb2 import GetModelInfoRequest
from rpc.baton.v1.router_pb2_grpc import RouterStub
from rpc.tls import BadCertificate, TlsFiles
from tests.certificates import Authority
from tests.integration.frontends import Frontends, code_of, open_frontends

COMPLETIONS = "/v1/completions"
HELLO = {"prompt": "hi"}


class TestTls:
    async def test_both_frontends_serve_tls_with_the_certificate(self, folder: Path, tmp_path: Path) -> None:
        authority, other = Authority.make("ours"), Authority.make("another")
        async with open_frontends(folder, tls=authority.issue(tmp_path)) as frontends:
            async with httpx.AsyncClient(verify=trusting(authority)) as http:
                stream = HELLO | {"stream": True}
                response = await http.post(frontends.url + COMPLETIONS, json=stream)
                assert response.text.endswith("data: [DONE]\n\n")
            async with httpx.AsyncClient(verify=trusting(other)) as http:
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await http.get(f"{frontends.url}/live")
            assert await served_over_grpc(frontends, grpc.ssl_channel_credentials(authority.pem))
            assert not await served_over_grpc(frontends, grpc.ssl_channel_credentials(other.pem))

    async def test_new_connections_get_a_renewed_certificate(self, folder: Path, tmp_path: Path) -> None:
        old, new = Authority.make("old"), Authority.make("new")
        files = old.issue(tmp_path)
        async with open_frontends(folder, tls=files) as frontends:
            async with httpx.AsyncClient(verify=trusting(old)) as connected:
                assert (await connected.get(f"{frontends.url}/live")).status_code == 200
                new.issue(tmp_path)
                files.reload()
                assert (
                    await connected.get(f"{frontends.url}/live")
                ).status_code == 200  # the connection stays
            async with httpx.AsyncClient(verify=trusting(new)) as http:
                assert (await http.get(f"{frontends.url}/live")).status_code == 200
            assert await served_over_grpc(frontends, grpc.ssl_channel_credentials(new.pem))
            assert not await served_over_grpc(frontends, grpc.ssl_channel_credentials(old.pem))
            files.key.write_text("half a ke")
            with pytest.raises(BadCertificate):
                files.reload()
            async with httpx.AsyncClient(verify=trusting(new)) as http:
                assert (await http.get(f"{frontends.url}/live")).status_code == 200

    async def test_plaintext_gets_no_answer(self, folder: Path, tmp_path: Path) -> None:
        async with open_frontends(folder, tls=Authority.make("ours").issue(tmp_path)) as frontends:
            async with httpx.AsyncClient() as http:
                with pytest.raises(httpx.TransportError):
                    await http.get(frontends.url.replace("https", "http") + "/live")
            async with grpc.aio.insecure_channel(frontends.target) as channel:
                info = RouterStub(channel).GetModelInfo(GetModelInfoRequest(), timeout=5)
                assert await code_of(info) is grpc.StatusCode.UNAVAILABLE

    def test_unusable_certificate_and_key_files_are_errors_before_anything_starts(
        self, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        ours = Authority.make("ours")
        one, other = ours.issue(first), ours.issue(second, passphrase=b"secret")
        one.check()
        with pytest.raises(BadCertificate, match="are not a certificate and its key: KEY_VALUES_MISMATCH"):
            TlsFiles(other.certificate, one.key).check()
        with pytest.raises(BadCertificate, match="passphrase"):
            other.check()
        with pytest.raises(BadCertificate, match="none: No such file"):
            TlsFiles(one.certificate, tmp_path / "none").check()
        (tmp_path / "noise").write_text("not a certificate")
        with pytest.raises(BadCertificate, match="are not a certificate and its key"):
            TlsFiles(tmp_path / "noise", one.key).check()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


async def served_over_grpc(frontends: Frontends, credentials: grpc.ChannelCredentials) -> bool:
    async with grpc.aio.secure_channel(frontends.target, credentials) as channel:
        return await code_of(RouterStub(channel).GetModelInfo(GetModelInfoRequest(), timeout=5)) is None
