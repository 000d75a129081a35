"""A model of text and one of embeddings behind one router, each with its own workers, on real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tests.e2e.router_process import RouterProcess, router
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.service.test_embeddings import with_ends

TEXTS = ["the quick brown fox", "a lazy dog", "the fox jumps over the brown dog " * 3]
CHAT = {"model": "talks", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 4}


@dataclass
class Service:
    process: RouterProcess
    encoder: SmallModel

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        answer = httpx.post(f"{self.process.url}{path}", json=body, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()

    @torch.inference_mode()
    def expected(self, text: str) -> np.ndarray[Any, Any]:
        [ids] = self.encoder.tokenizer.encode_batch([text])
        first = self.encoder.model(torch.tensor([ids])).last_hidden_state[0, 0]
        return (first / first.norm()).numpy()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("models")
    save_small_model(folder / "talks")
    encoder = save_small_model(folder / "search", lambda **of: BertModel(BertConfig(**of)))
    encoder = with_ends(encoder, pairs=True)
    models = [word for name in ("talks", "search") for word in ("--model", f"{name}={folder / name}")]
    with router(folder / "log", *models, "--kv-pool-tokens", "4096", model=None) as process:
        process.wait_until_ready()
        yield Service(process, encoder)


def test_each_answers_what_it_computes_and_refuses_the_rest(service: Service) -> None:
    found = service.post("/v1/embeddings", {"model": "search", "input": TEXTS})
    for text, item in zip(TEXTS, found["data"], strict=True):
        np.testing.assert_allclose(item["embedding"], service.expected(text), atol=1e-5)
    ranked = service.post("/v1/rerank", {"model": "search", "query": TEXTS[1], "documents": TEXTS})
    assert ranked["results"][0]["index"] == 1
    assert service.post("/v1/chat/completions", CHAT)["usage"]["completion_tokens"] > 0
    asked = {"type": "predicate", "instructions": "It is late."}
    decided = service.post("/v1/decisions", {"model": "talks", "input": "a", "questions": [asked]})
    assert 0 <= decided["answers"][0]["probability"] <= 1
    assert "generates no text" in str(service.post("/v1/chat/completions", {**CHAT, "model": "search"}, 400))
    refusal = service.post("/v1/embeddings", {"model": "talks", "input": "a"}, 400)
    assert "--convert embed" in str(refusal)


def test_a_batch_has_rows_for_both(service: Service, tmp_path: Path) -> None:
    rows = [("/v1/embeddings", {"model": "search", "input": text}) for text in TEXTS]
    rows.append(("/v1/chat/completions", CHAT))
    asked = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": body}
        for number, (url, body) in enumerate(rows)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asked)))
    command = [
        Path(sys.executable).with_name("router"),
        "batch",
        tmp_path / "in.jsonl",
        tmp_path / "out.jsonl",
    ]
    subprocess.run([*command, "--url", service.process.url], check=True, timeout=120)
    answers = {}
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        row = json.loads(line)
        answers[int(row["custom_id"])] = row["response"]["body"]
    assert len(answers) == len(rows)
    for number, text in enumerate(TEXTS):
        vector = answers[number]["data"][0]["embedding"]
        np.testing.assert_allclose(vector, service.expected(text), atol=1e-5)
    assert answers[3]["object"] == "chat.completion"


def test_figures_name_reads_of_each_model(service: Service) -> None:
    service.post("/v1/embeddings", {"model": "search", "input": TEXTS})
    metrics = httpx.get(f"{service.process.url}/metrics", timeout=10).text
    counts = dict(re.findall(r'baton_read_seconds_count\{.*model_name="(\w+)".*\} (\S+)', metrics))
    assert float(counts["search"]) >= len(TEXTS)
    for name in ("talks", "search"):
        status = httpx.get(f"{service.process.url}/status?model={name}", timeout=10).json()
        assert (status["model"]["name"], len(status["workers"])) == (name, 1)
