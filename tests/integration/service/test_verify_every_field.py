"""No field of a receipt can be changed without `router verify` naming it, also with a new digest over all."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest

from router.api.generation.audit.receipts import Receipt
from router.config.choices import Mode
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.auditing import resealed, sealed, verdict
from tests.integration.service.test_receipts import receipt_of
from tests.unit.router.api.generation.test_receipts import altered, leaves

PATH = "/v1/completions"
SAMPLED = {"temperature": 1.0, "seed": 5, "max_tokens": 40, "ignore_eos": True}
DIGEST = "ab" * 32
SPAN = {"first": 0, "digest": DIGEST, "version": ""}
IMAGE = {"digest": DIGEST, "offset": 0, "length": 1}
FORGED: dict[str, list[Callable[[Any], Any]]] = {
    "version": [lambda old: old + 1],
    "model": [lambda old: "other"],
    "weights": [
        lambda old: [SPAN],
        lambda old: [old[0] | {"version": "2"}],
        lambda old: [old[0] | {"first": 1}],
        lambda old: [*old, SPAN | {"first": 9}],
        lambda old: [SPAN, old[0] | {"first": 9}],
        lambda old: [],
    ],
    "config": [lambda old: DIGEST],
    "adapter": [lambda old: DIGEST, lambda old: f"{DIGEST}@3"],
    "media": [lambda old: [IMAGE]],
    "numerics": [lambda old: "bfloat16 on cuda"],
    "tokenizer": [lambda old: DIGEST],
    "template": [lambda old: DIGEST, lambda old: ""],
    "sampling": [
        lambda old: old | {"max_tokens": 41},
        lambda old: old | {"max_tokens": 39},
        lambda old: old | {"min_tokens": 41},
        lambda old: old | {"surprise": 1},
        lambda old: old | {"seed": "5.5"},
    ],
    "prompt": [lambda old: old | {"count": old["count"] + 1}, lambda old: old | {"digest": DIGEST}],
    "output": [lambda old: old | {"count": old["count"] + 1}, lambda old: old | {"digest": DIGEST}],
    "finish": [lambda old: "stop", lambda old: "abort"],
    "namespace": [lambda old: DIGEST],
    "pages": [
        lambda old: [*old[:-1], "0" * 16],
        lambda old: ["0" * 16, *old[1:]],
        lambda old: old[:-1],
        lambda old: [],
    ],
}
"""Other values of each field."""


def test_these_are_all_fields() -> None:
    assert FORGED.keys() == {field.name for field in fields(Receipt)}


async def test_a_changed_field_is_named(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, **SAMPLED)
        digests = {name: value for name, value in receipt.items() if not name.endswith("token_ids")}
        prompt = receipt["prompt_token_ids"]
        assert (await verdict(cluster, receipt))[0]["outcome"] == "equal"
        assert (await verdict(cluster, digests, prompt=prompt))[0]["outcome"] == "equal"
        for name, changes in FORGED.items():
            for number, change in enumerate(changes):
                forged = {name: change(receipt[name])}
                for one, given in ((receipt, None), (digests, prompt)):
                    found, text = await verdict(cluster, one | forged, prompt=given)
                    assert found["outcome"] != "equal", (name, number)
                    if name != "version" and not (name == "weights" and number in (2, 5)):
                        found, text = await verdict(cluster, sealed(one | forged), prompt=given)
                    assert found["outcome"] != "equal", (name, number)
                    assert name in text, (name, number, text)


async def test_a_change_of_any_value_is_found(small: SmallModel) -> None:
    """All values that the type has, at any depth: a new field needs no change here."""
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, **SAMPLED)
        for *way, last in leaves(receipt):
            forged: Any = deepcopy(receipt)
            place = forged
            for step in way:
                place = place[step]
            place[last] = altered(place[last])
            found, _ = await verdict(cluster, forged)
            assert found["outcome"] != "equal", (way, last)


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ({}, {"seed": "6"}),
        ({}, {"temperature": 0.01}),
        ({}, {"top_k": 1}),
        ({}, {"top_p": 0.001}),
        ({}, {"min_p": 0.99}),
        ({}, {"repetition_penalty": 1.9}),
        ({}, {"presence_penalty": 2}),
        ({}, {"frequency_penalty": 2}),
        ({}, {"logit_bias": {"7": 100}}),
        ({}, {"grammar": {"kind": "regex", "text": "[a-c]{40}"}, "ignore_eos": False}),
        ({"ignore_eos": False, "logit_bias": {"1": 100}}, {"ignore_eos": True}),
        ({"ignore_eos": False, "logit_bias": {"1": 100}}, {"min_tokens": 1}),
        ({"logit_bias": {"9": 100}}, {"stop_token_ids": [9]}),
        ({"logit_bias": {"9": 100}}, {"logit_bias": {}}),
    ],
    ids=str,
)
async def test_another_sampling_parameter_is_found_by_the_tokens(
    small: SmallModel, asked: dict[str, Any], change: dict[str, Any]
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        receipt = await receipt_of(cluster, PATH, small, **SAMPLED | asked)
        assert (await verdict(cluster, receipt))[0]["outcome"] == "equal"
        forged = sealed(receipt | {"sampling": receipt["sampling"] | change})
        found, _ = await verdict(cluster, forged)
    assert found["outcome"] == "differs", found
    assert found["difference"] or found["fields"], found


async def test_an_answer_that_was_cut_or_continued_is_found(small: SmallModel) -> None:
    """Whoever computes all digests again cannot make another answer true."""
    async with local_cluster(small, Mode.MIXED) as cluster:
        plain = await receipt_of(cluster, PATH, small, **SAMPLED)
        text = small.text(plain["token_ids"])
        kinds = {
            "length": plain,
            "stop string": await receipt_of(cluster, PATH, small, **SAMPLED, stop=[text[12:15]]),
            "stop token": await receipt_of(
                cluster, PATH, small, **SAMPLED, stop_token_ids=[plain["token_ids"][20]]
            ),
        }
        for kind, receipt in kinds.items():
            tokens = receipt["token_ids"]
            assert receipt["finish"] == ("length" if kind == "length" else "stop")
            assert (await verdict(cluster, receipt))[0]["outcome"] == "equal", kind
            for ids in (tokens[:-1], [*tokens, tokens[0]], [*tokens[:-1], tokens[-1] ^ 1]):
                found, text = await verdict(cluster, resealed(receipt | {"token_ids": ids}))
                assert found["outcome"] == "differs", (kind, len(ids), text)
                assert found["altered"] == []
            other = "stop" if kind == "length" else "length"
            found, text = await verdict(cluster, sealed(receipt | {"finish": other}))
            assert found["outcome"] == "differs", kind
            assert "finish" in text or "max_tokens" in text, (kind, text)
            prompt = [*receipt["prompt_token_ids"][1:], 9]
            found, _ = await verdict(cluster, resealed(receipt | {"prompt_token_ids": prompt}))
            assert found["outcome"] == "differs", kind
