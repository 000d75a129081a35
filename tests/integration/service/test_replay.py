"""`router replay` computes recorded requests again, and says which answers differ, and where first."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file

from router.api.generation.audit.record_file import RecordFile
from router.command.audit.comparison import Difference
from router.command.audit.replay import Recorded, Replayed, read_log, replay, report
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.test_receipts import body_of, post

PATH = "/v1/completions"


async def recorded(cluster: LocalCluster, small: SmallModel, log: Path) -> None:
    """A log of requests of several kinds."""
    bodies: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "n": 2},
        {"temperature": 1.0, "seed": 4, "cache_salt": "one"},
        {"temperature": 0.8, "structured_outputs": {"regex": "[a-z]{2,9}"}},
        {"temperature": 0.8, "stop": ["e"]},
    ]
    with RecordFile(log, 1 << 20) as records:
        cluster.generation.records = records
        for body in bodies:
            answer = await post(cluster, PATH, body_of(PATH, small, receipt=None, **body))
            assert answer.status_code == 200
            assert "receipt" not in answer.text
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
        await post(cluster, "/v1/chat/completions", chat)
        refused = await post(cluster, PATH, {"prompt": [], "max_tokens": 3})
        assert refused.status_code == 400
        await read_a_decision(cluster)
        cluster.generation.records = None


async def read_a_decision(cluster: LocalCluster) -> None:
    """Answers that are not generated are not recorded."""
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        asked = {"query": [5, 6], "items": [[7]], "label_token_ids": [8, 9]}
        assert (await client.post("/v1/score", json=asked)).status_code == 200


async def replayed(*arguments: str) -> tuple[int, str]:
    command = ["-c", "import sys; from router.command.main import main; sys.exit(main(sys.argv[1:]))"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "replay",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return int(process.returncode or 0), output.decode()


async def test_a_log_is_replayed_in_another_mode_and_with_other_weights(
    small: SmallModel, tmp_path: Path
) -> None:
    log, results = tmp_path / "log.jsonl", tmp_path / "results.jsonl"
    async with local_cluster(small, Mode.MIXED, identify_weights=False) as cluster:
        await recorded(cluster, small, log)
    assert len(log.read_text().splitlines()) == 7
    async with local_cluster(small, Mode.DISAGG) as cluster:
        status, text = await replayed(str(log), "--url", cluster.url, "--speed", "2")
        assert status == 0, text
        assert "7 requests: 7 equal, 0 differ, 0 cannot be compared" in text
        shutil.copytree(small.folder, tmp_path / "changed")
        values = load_file(small.folder / "model.safetensors")
        torch.manual_seed(1)
        changed = {name: v + 0.3 * torch.randn_like(v) if v.dim() > 1 else v for name, v in values.items()}
        save_file(changed, tmp_path / "changed" / "model.safetensors", metadata={"format": "pt"})
        await cluster.weights.update(str(tmp_path / "changed"))
        status, text = await replayed(str(log), "--url", cluster.url, "--output", str(results))
    assert status == 1, text
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    differing = [line for line in lines if line["outcome"] == "differs"]
    assert len(lines) == 7
    assert f"7 requests: {7 - len(differing)} equal, {len(differing)} differ" in text
    assert len(differing) >= 5
    assert all(line["gap"] is not None or None in line["difference"].values() for line in differing)
    offline = ("--model", str(small.folder), "--device", "cpu", "--dtype", "float32")
    status, text = await replayed(str(log), *offline)
    assert status == 2, text
    assert "6 equal, 0 differ, 1 cannot be compared" in text
    assert "1 × offline inference has no structured output" in text


async def test_a_log_that_is_none_is_refused_with_the_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"at": 1}\n')
    status, text = await replayed(str(log))
    assert status == 2
    assert "line 1 is no record" in text


class Echo:
    """Answers what was recorded, but for one token."""

    most_at_once = None
    renames = False

    def __init__(self, recorded: list[int], at: int | None) -> None:
        self._recorded = recorded
        self._at = at
        self.began: list[float] = []

    def answer(self, body: Any, adapter: str) -> Any:
        tokens = [token + (k == self._at) for k, token in enumerate(self._recorded)]
        return {"choices": [{"token_ids": tokens}]}

    def logprobs(self, model: str, before: Any, tokens: Any, adapter: str = "") -> list[float]:
        return [-1.0, -1.005]


async def test_arrivals_are_those_of_the_log(small: SmallModel, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with local_cluster(small, Mode.MIXED) as cluster:
        await recorded(cluster, small, log)
    (first, *_) = read_log([log])
    requests = [Recorded(str(k), 10.0 * k, 1.0, first.answer) for k in range(3)]
    now, slept = 100.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    tokens = list(first.answer.tokens or ())
    for speed, gaps in ((1.0, [0.0, 10.0, 10.0]), (4.0, [0.0, 2.5, 2.5]), (0.0, [])):
        slept.clear()
        found = list(replay(requests, Echo(tokens, 3), speed, 1, lambda: now, sleep))
        assert slept == gaps
        assert [each.difference for each in found] == [Difference(3, True, tokens[3], tokens[3] + 1)] * len(
            requests
        )
    assert not any(each.difference for each in replay(requests, Echo(tokens, None), 0.0, 2))


def test_the_report_counts_near_ties() -> None:
    def differs(name: str, position: int, gap: float | None) -> Replayed:
        return Replayed(name, "differs", 20, 1.0, 2.0, "", Difference(position, True, 7, 8), gap)

    found = [
        Replayed("a", "equal", 20, 1.0, 2.0),
        differs("b", 4, 0.005),
        differs("c", 2, -0.5),
        differs("d", 9, None),
        Replayed("e", "not_comparable", 20, 1.0, 2.0, "no such model"),
    ]
    assert list(report(found)) == [
        "5 requests: 1 equal, 3 differ, 1 cannot be compared",
        "tokens before the first difference: 35 of 80",
        "seconds a request, median: 1.000, recorded 2.000",
        "gap of log-probabilities at the first difference:"
        " below 0.01: 1, below 0.1: 0, more: 1, not known: 1",
        "  c: token 2 of 20: 7 recorded, 8 computed, gap -0.5000",
        "  b: token 4 of 20: 7 recorded, 8 computed, gap +0.0050",
        "  d: token 9 of 20: 7 recorded, 8 computed",
        "  1 × no such model",
    ]
