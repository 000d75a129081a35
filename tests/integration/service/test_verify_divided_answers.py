"""An answer with several versions of the weights is verified as far as its weights are served."""

from __future__ import annotations

from typing import Any

import pytest

from router.config.choices import Mode, UpdateMode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.auditing import resealed, sealed, verdict
from tests.integration.service.changed_weights import Changed
from tests.integration.service.test_receipts import prompt_of
from tests.integration.service.test_receipts_of_disturbed_answers import Asked

VERSION = "17"


async def divided(cluster: LocalCluster, small: SmallModel, changed: Changed, **more: Any) -> dict[str, Any]:
    """The receipt of an answer during which the weights were updated, all at once."""
    asked = Asked(cluster, small, **more)
    await asked.begun()
    await cluster.weights.update(str(changed.folder), VERSION, how=UpdateMode.TOGETHER)
    receipt = await asked.receipt()
    assert len(receipt["weights"]) == 2
    return receipt


async def test_the_part_whose_weights_are_served_is_computed_again(
    small: SmallModel, changed: Changed
) -> None:
    async with local_cluster(small, Mode.MIXED, each=2) as cluster:
        receipt = await divided(cluster, small, changed, repetition_penalty=1.1, min_tokens=300)
        first, count = receipt["weights"][1]["first"], receipt["output"]["count"]
        found, text = await verdict(cluster, receipt)
        assert found["outcome"] == "partly_equal", text
        assert found["checked"] == count - first
        assert text.splitlines() == [
            f"partly equal: {count - first} of {count} tokens",
            f"  not checked: tokens 0 to {first - 1}: of the weights of the start, which are not served;"
            " taken as prompt",
        ]
        for at in (first, count - 1):
            tokens = list(receipt["token_ids"])
            tokens[at] ^= 1
            found, text = await verdict(cluster, resealed(receipt | {"token_ids": tokens}))
            assert found["outcome"] == "differs"
            assert found["difference"]["position"] == at
            assert found["difference"]["recorded"] == tokens[at]
            assert max(found["logprobs"]) < 0
        for name, span in (("digest", {"digest": "ab" * 16}), ("version", {"version": "18"})):
            weights = [receipt["weights"][0], receipt["weights"][1] | span]
            found, text = await verdict(cluster, sealed(receipt | {"weights": weights}))
            assert (found["outcome"], "weights" in text) == ("differs", True), name
        found, _ = await verdict(cluster, sealed(receipt | {"finish": "stop"}))
        assert found["outcome"] == "differs"
        assert found["fields"].keys() == {"finish"}
    async with local_cluster(small, Mode.DISAGG) as cluster:  # with the weights of the start
        found, text = await verdict(cluster, receipt)
        assert found["outcome"] == "partly_equal", text
        assert found["checked"] == first
        assert [each["what"] for each in found["unchecked"]] == [f"tokens {first} to {count - 1}", "finish"]
        assert f"of weights '{VERSION}', which are not served" in text
        tokens = list(receipt["token_ids"])
        tokens[first - 1] ^= 1
        found, text = await verdict(cluster, resealed(receipt | {"token_ids": tokens}))
        assert found["difference"]["position"] == first - 1


async def test_how_a_divided_answer_ended_is_checked_where_it_can_be(
    small: SmallModel, changed: Changed
) -> None:
    async with local_cluster(small, Mode.MIXED, each=2) as cluster:
        receipt = await divided(cluster, small, changed, stop=["no such text"])
        first = receipt["weights"][1]["first"]
        assert (await verdict(cluster, receipt))[0]["outcome"] == "partly_equal"
        found, text = await verdict(cluster, sealed(receipt | {"finish": "stop"}))
        assert found["outcome"] == "partly_equal"
        assert "not checked: finish: a stop string may begin" in text
        stopped = receipt["sampling"] | {"stop_token_ids": [receipt["token_ids"][first + 3]]}
        found, _ = await verdict(cluster, sealed(receipt | {"sampling": stopped}))
        assert found["outcome"] == "differs"
        assert found["difference"]["computed"] is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty depends on the tokens before it"),
        ({"frequency_penalty": 0.5}, "frequency_penalty depends on the tokens before it"),
        (
            {"structured_outputs": {"regex": "[a-z]{390}"}, "ignore_eos": False},
            "grammar depends on the tokens before it",
        ),
        ({"receipt": "digests"}, "the receipt has no tokens"),
    ],
    ids=["presence", "frequency", "grammar", "digests"],
)
async def test_what_depends_on_more_of_the_earlier_tokens_is_refused_by_name(
    small: SmallModel, changed: Changed, more: dict[str, Any], reason: str
) -> None:
    async with local_cluster(small, Mode.MIXED, each=2) as cluster:
        receipt = await divided(cluster, small, changed, **more)
        found, _ = await verdict(cluster, receipt, prompt=prompt_of(small))
    assert found["outcome"] == "not_comparable"
    assert reason in found["reason"]
