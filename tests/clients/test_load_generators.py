"""Load generators and lm-eval, unmodified, against a router with two workers: see `make test-clients`."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.modeling.loader.checkpoint import resolve
from tests.clients.test_clients import ENVIRONMENT, HERE
from tests.e2e.router_process import router

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

TOKENS = 8


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A router in adaptive mode with one worker of each role, and SmolLM2."""
    workers = ("--mode", "adaptive", "--prefill-workers", "1", "--decode-workers", "1")
    with router(tmp_path_factory.mktemp("router") / "log", *workers) as running:
        running.wait_until_ready()
        yield running.url


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return str(resolve("smollm2").path)


def run(environment: str, program: str, *arguments: str | Path, cwd: Path) -> str:
    path = ENVIRONMENT / environment / "bin" / program
    if not path.exists():
        first = (HERE / "environments" / f"{environment}.txt").read_text().splitlines()[0]
        needs = f" ({environment} needs {first[2:]})" if first.startswith("#") else ""
        pytest.skip(f"{path} is missing: run make test-clients{needs}")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["OPENAI_API_KEY"] = "-"
    if environment != "aiperf":  # offline, it takes a folder for a name of the hub
        variables |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=600, env=variables, cwd=cwd
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_counts_every_token(url: str, tokenizer: str, tmp_path: Path, route: str) -> None:
    """Its exit code is 0 even if every request fails."""
    run(
        "guidellm",
        "guidellm",
        "run",
        *("--backend", f"kind=openai_http,target={url},model=smollm2,request_format={route}"),
        *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={tmp_path / 'report.json'}", "--disable-console-interactive"),
        cwd=tmp_path,
    )
    [benchmark] = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (4, 0)
    assert all(request["output_metrics"]["text_tokens"] == TOKENS for request in requests["successful"])


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("counts", ["client", "server"])
def test_aiperf_counts_every_token(url: str, tokenizer: str, tmp_path: Path, kind: str, counts: str) -> None:
    by_server = ["--use-server-token-count"] if counts == "server" else []
    if by_server and kind == "chat":
        by_server.append("--per-chunk-usage")  # refused for completions
    run(
        "aiperf",
        "aiperf",
        "profile",
        *("--model", "smollm2", "--url", url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", tokenizer, "--request-count", "4", "--concurrency", "2", "--isl", "32"),
        *("--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--ui", "none", "--artifact-dir", tmp_path, *by_server),
        cwd=tmp_path,
    )
    [table] = tmp_path.rglob("profile_export_aiperf.csv")
    rows = {row[0]: row[1:] for row in csv.reader(table.open()) if row}
    assert float(rows["Request Count"][0]) == 4
    assert "Error Request Count" not in rows
    assert float(rows["Output Sequence Length (tokens)"][0]) == pytest.approx(TOKENS, abs=1)


def test_inference_perf_gets_every_answer(url: str, tokenizer: str, tmp_path: Path) -> None:
    lengths = {"min": 8, "max": 8, "mean": 8, "std_dev": 0, "total_count": 5}
    config = tmp_path / "config.yml"
    config.write_text(
        json.dumps(
            {
                "api": {"type": "completion", "streaming": True},
                "server": {"type": "vllm", "model_name": "smollm2", "base_url": url, "ignore_eos": True},
                "tokenizer": {"pretrained_model_name_or_path": tokenizer},
                "data": {"type": "random", "input_distribution": lengths, "output_distribution": lengths},
                "load": {"type": "constant", "stages": [{"rate": 1, "duration": 5}], "num_workers": 1},
                "storage": {"local_storage": {"path": str(tmp_path / "reports")}},
            }
        )
    )
    run("inference-perf", "inference-perf", "--config_file", config, cwd=tmp_path)
    [report] = (tmp_path / "reports").rglob("summary_lifecycle_metrics.json")
    summary = json.loads(report.read_text())
    assert (summary["successes"]["count"], summary["failures"]["count"]) == (5, 0)


@pytest.mark.parametrize("task", ["generate_until", "multiple_choice", "loglikelihood_rolling"])
def test_lm_eval_evaluates_completions(url: str, tokenizer: str, task: str) -> None:
    where = f"model=smollm2,base_url={url}/v1/completions,tokenizer={tokenizer},tokenized_requests=True"
    evaluate("local-completions", f"{where},max_length=1024,num_concurrent=2", task)


def test_lm_eval_evaluates_chats(url: str) -> None:
    where = f"model=smollm2,base_url={url}/v1/chat/completions,num_concurrent=2"
    evaluate("local-chat-completions", where, "generate_until", "--apply_chat_template")


def evaluate(model: str, where: str, task: str, *more: str) -> None:
    output = run(
        "lm-eval",
        "lm_eval",
        "run",
        *("--model", model, "--model_args", where, *more),
        *("--include_path", HERE / "tasks", "--tasks", f"baton_{task}"),
        cwd=HERE / "tasks",
    )
    assert f"|baton_{task}" in output
