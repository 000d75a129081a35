"""The whole service with keys and TLS: both frontends have the flags, and workers refuse other clients."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import httpx
import psutil

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from tests.certificates import Authority
from tests.e2e.router_process import RouterProcess, router

KEY = "0123456789abcdef-alice"
METRICS_KEY = "0123456789abcdef-prometheus"
PAGE = "https://chat.example.com"
ASK = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


def test_a_router_with_keys_and_tls_serves_clients_with_a_key_and_its_workers_refuse_all_others(
    tmp_path: Path,
) -> None:
    authority = Authority.make("ours")
    files = authority.issue(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    metrics_keys = tmp_path / "metrics-keys"
    metrics_keys.write_text(METRICS_KEY)
    flags = {
        "api-key-file": keys,
        "metrics-key-file": metrics_keys,
        "cors-origins": PAGE,
        "http-keep-alive": 90,
        "tls-cert": files.certificate,
        "tls-key": files.key,
        "worker-network": "127.0.0.0/8",
    }
    with router(tmp_path / "log", *(f"--{name}={value}" for name, value in flags.items())) as service:
        service.wait_until_ready()
        context = ssl.create_default_context(cadata=authority.pem.decode())
        with httpx.Client(base_url=service.url, verify=context, timeout=60) as http:
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
