"""`router verify` computes an answer again, and finds what was changed in the receipt or on the server."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from router.api.generation.audit.receipts import Presented
from router.command.audit import verify
from router.command.audit.comparison import Difference, receipts_in
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.test_receipts import body_of, post, prompt_of, receipt_of

PATH = "/v1/completions"
SAMPLED = {"temperature": 1.0, "seed": 5, "top_k": 0}


async def verified(
    cluster: LocalCluster, receipt: Any, folder: Path, *arguments: str
) -> tuple[int, list[dict[str, Any]]]:
    """Exit status, and what is printed for each receipt."""
    file = folder / "receipt.json"
    file.write_text(json.dumps(receipt))
    return await ran(file, "--url", cluster.url, *arguments)


async def ran(file: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = ["-c", "import sys; from router.command.main import main; sys.exit(main(sys.argv[1:]))"]
    words = [*command, "verify", str(file), *arguments, "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    lines = [json.loads(line) for line in output.decode().splitlines()]
    return int(process.returncode or 0), lines or [{"reason": errors.decode()}]


def sealed(receipt: dict[str, Any]) -> dict[str, Any]:
    """With the digest that a forger would compute."""
    return receipt | {"digest": Presented.read(receipt | {"digest": ""}).receipt.digest}


@pytest.mark.parametrize("mode", Mode)
async def test_answers_of_every_kind_are_equal_when_computed_again(
    small: SmallModel, tmp_path: Path, mode: Mode
) -> None:
    bodies: list[dict[str, Any]] = [
        {"temperature": 0.0},
        SAMPLED,
        SAMPLED | {"n": 3, "top_p": 0.9, "min_p": 0.01},
        SAMPLED | {"stop": ["e"], "min_tokens": 5},
        SAMPLED | {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {"7": 3.0}},
        SAMPLED | {"structured_outputs": {"regex": "[a-z]{3,40}"}},
        SAMPLED | {"structured_outputs": {"choice": ["yes", "no"]}},
        SAMPLED | {"ignore_eos": True, "stop_token_ids": [9], "max_tokens": 200},
    ]
    async with local_cluster(small, mode) as cluster:
        answers = [(await post(cluster, PATH, body_of(PATH, small, **body))).json() for body in bodies]
        chat = await post(
            cluster, "/v1/chat/completions", body_of("/v1/chat/completions", small, seed=3, temperature=0.7)
        )
        status, lines = await verified(cluster, [*answers, chat.json()], tmp_path)
    assert len(lines) == len(bodies) + 2 + 1
    assert [line["outcome"] for line in lines] == ["equal"] * len(lines), lines
    assert status == 0


async def test_what_was_changed_in_a_receipt_is_named(small: SmallModel, tmp_path: Path) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, **SAMPLED)
        prompt, tokens = receipt["prompt_token_ids"], receipt["token_ids"]
        other_seed = {**receipt["sampling"], "seed": "6"}
        changes: dict[str, dict[str, Any]] = {
            "prompt": {"prompt_token_ids": [*prompt[:-1], prompt[-1] + 1]},
            "output": {"token_ids": [*tokens[:4], tokens[4] + 1, *tokens[5:]]},
            "weights": {"weights": [{"first": 0, "digest": "ab", "version": ""}]},
            "template": {"template": "ab"},
            "tokenizer": {"tokenizer": "ab"},
            "adapter": {"adapter": "ab"},
            "numerics": {"numerics": "bfloat16 on cuda"},
        }
        for name, change in changes.items():
            status, (line,) = await verified(cluster, receipt | change, tmp_path)
            assert (status, line["outcome"]) == (1, "differs"), name
            assert name in [*line["altered"], *line["fields"]], name
            status, (line,) = await verified(cluster, sealed(receipt | change), tmp_path)
            assert status == 1, name
            assert name in [*line["altered"], *line["fields"]], name
        status, (line,) = await verified(cluster, sealed(receipt | {"sampling": other_seed}), tmp_path)
    assert status == 1
    assert line["altered"] == []
    assert line["fields"] == {}
    difference = line["difference"]
    assert difference["known"]
    assert difference["recorded"] == tokens[difference["position"]] != difference["computed"]
    assert all(logprob < 0 for logprob in line["logprobs"])


async def test_other_weights_are_named_with_the_first_token_that_differs(
    small: SmallModel, tmp_path: Path
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, temperature=0.0)
        shutil.copytree(small.folder, tmp_path / "changed")
        values = load_file(small.folder / "model.safetensors")
        torch.manual_seed(1)
        changed = {name: v + 0.3 * torch.randn_like(v) if v.dim() > 1 else v for name, v in values.items()}
        save_file(changed, tmp_path / "changed" / "model.safetensors", metadata={"format": "pt"})
        await cluster.weights.update(str(tmp_path / "changed"), "2")
        status, (line,) = await verified(cluster, receipt, tmp_path)
        newer = await receipt_of(cluster, PATH, small, temperature=0.0)
        assert (await verified(cluster, newer, tmp_path))[0] == 0
    assert status == 1
    assert line["fields"]["weights"][1][0]["version"] == "2"
    assert newer["weights"] == line["fields"]["weights"][1]
    assert line["difference"]["recorded"] != line["difference"]["computed"]


async def test_a_receipt_of_digests_is_verified_with_the_prompt(small: SmallModel, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(prompt_of(small)))
    with_ids = ("--prompt-ids", str(ids))
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, receipt="digests", max_tokens=60, ignore_eos=True)
        assert (await verified(cluster, receipt, tmp_path, *with_ids))[0] == 0
        status, (line,) = await verified(cluster, receipt, tmp_path)
        assert (status, line["outcome"]) == (2, "not_comparable")
        assert "--prompt-ids" in line["reason"]

        forged = receipt | {"sampling": {**receipt["sampling"], "seed": "6"}}
        status, (line,) = await verified(cluster, sealed(forged), tmp_path, *with_ids)
        assert status == 1
        assert not line["difference"]["known"]
        assert 0 <= line["difference"]["position"] < 60
        ids.write_text("[5, 6]")
        status, (line,) = await verified(cluster, receipt, tmp_path, *with_ids)
        assert status == 2
        assert "not that of the receipt" in line["reason"]


NOT_COMPARABLE: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("version", lambda receipt: receipt | {"version": 9}),
    ("images", lambda receipt: sealed(receipt | {"media": [{"digest": "ab", "offset": 0, "length": 1}]})),
    ("weights: their first", lambda receipt: receipt | {"weights": receipt["weights"] * 2}),
    ("sampling", lambda receipt: receipt | {"sampling": receipt["sampling"] | {"max_tokens": "many"}}),
    ("sampling", lambda receipt: receipt | {"sampling": {**receipt["sampling"], "seed": "1-3"}}),
    ("sampling", lambda receipt: receipt | {"sampling": {"grammar": {"kind": "poem", "text": ""}}}),
    ("temperature", lambda receipt: receipt | {"sampling": {"temperature": "hot"}}),
    ("no receipt", lambda receipt: {"text": "hello"}),
    ("not have a model|model 'other'", lambda receipt: sealed(receipt | {"model": "other"})),
]


async def test_what_cannot_be_compared_says_why(small: SmallModel, tmp_path: Path) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, temperature=0.0)
        for words, change in NOT_COMPARABLE:
            status, (line,) = await verified(cluster, change(receipt), tmp_path)
            assert status == 2, words
            assert any(word in line["reason"] for word in words.split("|")), (words, line)
        renamed = sealed(receipt | {"model": "other"})
        assert (await verified(cluster, renamed, tmp_path, "--served-model", "small"))[0] == 0
    status, (line,) = await verified(cluster, receipt, tmp_path)
    assert status == 2
    assert "no router answers" in line["reason"]
    async with local_cluster(small, Mode.MIXED, identify_weights=False) as cluster:
        status, (line,) = await verified(cluster, receipt, tmp_path)
        assert status == 2
        assert "--identify-weights" in line["reason"]


async def test_an_answer_is_verified_without_a_service(small: SmallModel, tmp_path: Path) -> None:
    async with local_cluster(small, Mode.DISAGG) as cluster:
        receipt = await receipt_of(cluster, PATH, small, **SAMPLED)
    offline = ("--model", str(small.folder), "--device", "cpu", "--dtype", "float32")
    forged = sealed(receipt | {"sampling": {**receipt["sampling"], "seed": "6"}})
    adapted = sealed(receipt | {"adapter": "ab"})
    file = tmp_path / "receipts.json"
    file.write_text(json.dumps([receipt, forged, adapted]))
    status, lines = await ran(file, *offline)
    assert status == 1
    assert [line["outcome"] for line in lines] == ["equal", "differs", "not_comparable"], lines
    assert lines[1]["difference"]["recorded"] != lines[1]["difference"]["computed"]
    assert "adapter" in lines[2]["reason"]


def test_lines_of_a_verdict_are_readable() -> None:
    differs = {
        "outcome": "differs",
        "altered": ["receipt"],
        "fields": {"weights": ([{"first": 0, "digest": "a" * 32, "version": ""}], [])},
        "difference": asdict(Difference(3, True, 7, 8)),
        "tokens": 9,
        "checked": 9,
        "unchecked": (),
        "logprobs": (-1.25, -1.5),
    }
    assert list(verify._lines(differs, "")) == [
        "differs: from token 3 of 9 on: 7 (log-probability -1.2500) in the receipt,"
        " 8 (log-probability -1.5000) computed",
        "  altered: receipt does not have its digest",
        "  weights: aaaaaaaaaaaaaaaa in the receipt, none computed",
    ]


def test_receipts_are_found_wherever_they_are() -> None:
    receipt = {"pages": [], "weights": [], "digest": ""}
    events = [{"choices": [{"receipt": receipt}]}, {"response": {"receipt": receipt}}, {"usage": None}]
    assert list(receipts_in(events)) == [receipt, receipt]
    assert list(receipts_in(receipt)) == [receipt]
