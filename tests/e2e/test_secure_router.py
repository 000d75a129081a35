"""The whole service with keys and TLS: both frontends have the flags, and workers refuse other clients."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from cryptography.x509 import load_pem_x509_certificate

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from tests.certificates import Authority
from tests.e2e.router_process import RouterProcess, router

KEY = "0123456789abcdef-alice"
NEXT_KEY = "0123456789abcdef-bob"
METRICS_KEY = "0123456789abcdef-prometheus"
PAGE = "https://chat.example.com"
ASK = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


@dataclass(frozen=True)
class Secured:
    service: RouterProcess
    authority: Authority
    folder: Path
    """Folder of the certificate, its key, and the keys of clients."""

    def client(self, key: str = "") -> httpx.Client:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.service.url, verify=context, timeout=60, headers=headers)

    def serial(self) -> int:
        """Serial number of the certificate that a new connection gets."""
        host, _, port = self.service.url.removeprefix("https://").partition(":")
        return load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority.make("ours")
    files = authority.issue(folder)
    (folder / "keys").write_text(KEY)
    (folder / "metrics-keys").write_text(METRICS_KEY)
    flags = {
        "api-key-file": folder / "keys",
        "metrics-key-file": folder / "metrics-keys",
        "cors-origins": PAGE,
        "http-keep-alive": 90,
        "tls-cert": files.certificate,
        "tls-key": files.key,
        "worker-network": "127.0.0.0/8",
    }
    with router(folder / "log", *(f"--{name}={value}" for name, value in flags.items())) as service:
        service.wait_until_ready()
        yield Secured(service, authority, folder)


def test_a_router_with_keys_and_tls_serves_clients_with_a_key_and_its_workers_refuse_all_others(
    secured: Secured,
) -> None:
    service = secured.service
    with secured.client() as http:
        assert http.get("/ready").status_code == 200
        assert http.post("/v1/completions", json=ASK).status_code == 401
        answer = http.post("/v1/completions", json=ASK, headers={"authorization": f"Bearer {KEY}"})
        assert answer.json()["choices"][0]["text"].startswith(" Paris")
        assert answer.headers["keep-alive"] == "timeout=90"
        metrics = {"authorization": f"Bearer {METRICS_KEY}", "origin": PAGE}
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers=metrics).headers["access-control-allow-origin"] == PAGE
        assert "baton_" in http.get("/metrics", headers=metrics).text
    assert KEY not in service.text()
    ports = listening(service)
    assert len(ports) > 1
    assert not [port for port in ports if answers_a_stranger(port)]


def test_keys_and_the_certificate_are_replaced_under_a_stream(secured: Secured) -> None:
    service, before = secured.service, secured.serial()
    workers = service.workers("DecodeWorker")
    with secured.client(KEY) as old, secured.client(NEXT_KEY) as new:
        body = ASK | {"max_tokens": 48, "ignore_eos": True, "stream": True}
        with old.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            secured.authority.issue(secured.folder)
            (secured.folder / "keys").write_text(f"{NEXT_KEY} requests=1")
            service.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 30.0
            while new.post("/v1/completions", json=ASK).status_code == 401:
                assert time.monotonic() < deadline, service.text()
                time.sleep(0.1)
            assert secured.serial() != before
            assert old.post("/v1/completions", json=ASK).status_code == 401
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert new.post("/v1/completions", json=ASK | {"n": 2}).status_code == 400, "its line allows one"
    assert service.workers("DecodeWorker") == workers


def listening(service: RouterProcess) -> list[int]:
    """Every port of the worker, Ray's included."""
    (worker,) = service.workers("DecodeWorker")
    return [c.laddr.port for c in worker.net_connections() if c.status == psutil.CONN_LISTEN]


def answers_a_stranger(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            worker_pb2_grpc.WorkerStub(channel).Describe(worker_pb2.DescribeRequest(), timeout=2)
        except grpc.RpcError:
            return False
    return True
