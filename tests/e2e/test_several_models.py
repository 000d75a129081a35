"""Two models behind one router: each has its own mode and workers, and one serves on without the other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from rpc.router_client import RouterClient
from tests.e2e.router_process import RouterProcess, router
from tests.faults.support.small_model import Question, SmallModel, save_small_model

LENGTH = 12


@dataclass
class Service:
    process: RouterProcess
    models: Mapping[str, SmallModel]

    def ask(self, name: str, question: Question) -> list[int]:
        body = {
            "model": name,
            "prompt": list(question.prompt),
            "max_tokens": question.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = httpx.post(f"{self.process.url}/v1/completions", json=body, timeout=60).raise_for_status()
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    def question(self, name: str, seed: int) -> Question:
        return self.models[name].question(seed, length=40, max_tokens=LENGTH)

    def answers_right(self, name: str, seed: int) -> bool:
        question = self.question(name, seed)
        return self.ask(name, question) == self.models[name].answer(question)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.process.url}{path}", timeout=10)

    def command(self, *words: str) -> tuple[int, str]:
        """A `router` command for the admin port: exit status and output."""
        (port,) = re.findall(r"--admin-port (\d+)", self.process.text())
        done = subprocess.run(
            [Path(sys.executable).with_name("router"), *words, "--admin-port", port],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def workers(self, name: str) -> list[psutil.Process]:
        _, listed = self.command("workers", "--model", name)
        return [psutil.Process(int(pid)) for pid in re.findall(r"pid (\d+)", listed)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "org/one": save_small_model(folder / "one"),
        "two": save_small_model(folder / "two", num_hidden_layers=3),
    }
    settings: dict[str, Any] = {
        "models": {
            "org/one": {"model": str(folder / "one"), "mode": "mixed"},
            "two": {"model": str(folder / "two"), "mode": "disagg", "page-size": 32},
        },
        "kv-pool-tokens": 4096,
    }
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    with router(folder / "log", "--config", str(file), model=None) as process:
        process.wait_until_ready()
        yield Service(process, models)


def test_each_model_answers_as_transformers_does_and_an_unknown_one_is_refused(service: Service) -> None:
    for name in service.models:
        assert all(service.answers_right(name, seed) for seed in range(3))
    assert [card["id"] for card in service.get("/v1/models").json()["data"]] == ["org/one", "two"]
    assert service.get("/v1/models/org/one").json()["id"] == "org/one"
    for unknown, status in (("three", 404), ("", 400)):
        body = {"model": unknown, "prompt": "a"} if unknown else {"prompt": "a"}
        refusal = httpx.post(f"{service.process.url}/v1/completions", json=body)
        assert refusal.status_code == status
        assert "'org/one', 'two'" in refusal.json()["error"]["message"]


async def test_grpc_has_both_models_each_with_the_workers_that_run(service: Service) -> None:
    (target,) = re.findall(r"gRPC (\S+);", service.process.text())
    for name, workers in (("org/one", (0, 1)), ("two", (1, 1))):
        async with RouterClient(target, model=name) as client:
            info = await client.model_info()
            question = service.question(name, 7)
            answer = await client.answer(
                list(question.prompt), max_tokens=LENGTH, temperature=0.0, ignore_eos=True
            )
        assert (info.model, info.prefill_workers, info.decode_workers) == (name, *workers)
        assert answer.token_ids == service.models[name].answer(question)


def test_figures_and_commands_say_of_which_model_they_are(service: Service) -> None:
    metrics = service.get("/metrics").text
    for name, mode in (("org/one", "mixed"), ("two", "disagg")):
        assert re.search(rf'baton_desired_workers{{.*mode="{mode}",model_name="{name}"', metrics), metrics
        status = service.get(f"/status?model={name}").json()
        assert (status["model"]["name"], status["models"]) == (name, ["org/one", "two"])
    assert metrics.count("# TYPE baton_ttft_seconds histogram") == 1
    assert service.command("drain", "decode-0")[0] == 1
    assert "org/one:" in service.command("workers")[1]
    code, said = service.command("scale", "prefill", "2", "--model", "org/one")
    assert code == 1
    assert "there are no prefill workers in this mode" in said


def test_a_model_serves_on_while_the_workers_of_the_other_are_killed(service: Service) -> None:
    ours, theirs = service.workers("org/one"), service.workers("two")
    assert (len(ours), len(theirs)) == (1, 2)
    for worker in ours:
        worker.kill()
    seed = 20
    while service.get("/ready?model=org/one").status_code == 200 and seed < 200:
        assert service.answers_right("two", seed)
        seed += 1
    assert service.answers_right("two", seed)
    assert service.get("/ready").json()["models"] == {"org/one": "not ready", "two": "ready"}
    assert service.answers_right("org/one", 9)  # waits for the new worker
    assert service.workers("two") == theirs
