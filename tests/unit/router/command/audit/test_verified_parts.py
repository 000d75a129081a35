"""Which part of an answer `router verify` computes again, and what it says of the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from router.api.generation.audit.answer import Answer, Detail
from router.api.generation.audit.receipts import Presented, TokensDigest, WeightsSpan, issued, receipt_of
from router.api.media.marks import ImageSource
from router.command.audit import verify
from router.command.audit.bodies import parts_of
from router.command.audit.computing import OnService
from router.command.audit.outcome import NotComparable, Outcome, of_all
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.router.api.generation.test_receipts import ISSUER

PROMPT = [3, 4, 5]
OLD, MIDDLE, NEW = (WeightsSpan(first=0, digest=2 * name, version=name) for name in "abc")
_LENGTH, _STOP = sampling_pb2.FINISH_REASON_LENGTH, sampling_pb2.FINISH_REASON_STOP


def next_token(before: Sequence[int], weights: WeightsSpan, seed: int) -> int:
    return (sum(before) * 31 + len(before) * 7 + ord(weights.version) + seed) % 5 + 10


def answer_of(
    prompt: Sequence[int], spans: Sequence[WeightsSpan], count: int, sampling: Mapping[str, Any], **work: Any
) -> tuple[Answer, list[WeightsSpan]]:
    tokens: list[int] = []
    stops = sampling.get("stop_token_ids", ())
    while len(tokens) < count and not (tokens and tokens[-1] in stops):
        weights = [span for span in spans if span.first <= len(tokens)][-1]
        tokens.append(next_token([*prompt, *tokens], weights, sampling["seed"]))
    finish = _STOP if tokens[-1] in stops else _LENGTH
    asked = worker_pb2.Work(prompt=prompt, sampling=sampling_pb2.SamplingParams(**sampling), **work)
    return Answer(asked, (), tokens, finish, ()), list(spans)


SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 12}


def receipt(*spans: WeightsSpan, detail: Detail = Detail.TOKENS, **more: Any) -> dict[str, Any]:
    sampling = SAMPLING | more.pop("sampling", {})
    answer, weights = answer_of(PROMPT, spans, sampling["max_tokens"], sampling, **more)
    return dict(json.loads(json.dumps(issued(receipt_of(answer, ISSUER, weights), answer, detail))))


class Served:
    """A service that computes each token with the next of its weights, and all further ones with the last."""

    most_at_once = None
    renames = False

    def __init__(self, *weights: WeightsSpan) -> None:
        self._weights = list(weights)
        self.bodies: list[Mapping[str, Any]] = []

    def answer(self, body: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
        self.bodies.append(body)
        names = sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
        sampling = {name: value for name, value in body.items() if name in names}
        digest, _, start = adapter.partition("@")
        work = {"adapter_digest": bytes.fromhex(digest)} | ({"adapter_start": int(start)} if start else {})
        spans = [replace(weights, first=k) for k, weights in enumerate(self._weights)]
        answer, weights = answer_of(body["prompt"], spans, body["max_tokens"], sampling, **work)
        return {"receipt": issued(receipt_of(answer, ISSUER, weights), answer, Detail.TOKENS)}

    def logprobs(self, model: str, before: Any, tokens: Any, adapter: str = "") -> list[float]:
        return [-1.0, -2.0]


def at(first: int, weights: WeightsSpan) -> WeightsSpan:
    return replace(weights, first=first)


THREE = OLD, at(4, MIDDLE), at(9, NEW)


@pytest.mark.parametrize(
    ("served", "checked", "before", "after", "computations"),
    [
        (NEW, 3, ["tokens 0 to 3", "tokens 4 to 8"], [], 1),
        (MIDDLE, 5, ["tokens 0 to 3"], ["tokens 9 to 11", "finish"], 2),
        (OLD, 4, [], ["tokens 4 to 8", "tokens 9 to 11", "finish"], 2),
    ],
)
def test_the_part_of_the_served_weights_is_computed_again(
    served: WeightsSpan, checked: int, before: list[str], after: list[str], computations: int
) -> None:
    service = Served(served)
    found = verify.verified(receipt(*THREE), service)
    assert found["outcome"] == "partly_equal", found
    assert found["checked"] == checked
    assert [each["what"] for each in found["unchecked"]] == before + after
    assert len(service.bodies) == computations
    taken = [each["what"] for each in found["unchecked"] if "taken as prompt" in each["reason"]]
    assert taken == before


def test_of_several_parts_of_the_served_weights_the_last_is_computed_again() -> None:
    found = verify.verified(receipt(OLD, at(4, MIDDLE), at(8, OLD), at(11, MIDDLE)), Served(OLD))
    assert (found["outcome"], found["checked"]) == ("partly_equal", 3)
    reasons = {each["what"]: each["reason"] for each in found["unchecked"]}
    assert reasons["tokens 0 to 3"] == "a later part of these weights was; taken as prompt"
    assert reasons["tokens 11 to 11"] == "of weights 'b', which are not served"


def test_an_answer_none_of_whose_weights_are_served_differs_in_them() -> None:
    found = verify.verified(receipt(OLD, at(4, MIDDLE)), Served(NEW))
    assert found["outcome"] == "differs"
    assert [span["digest"] for span in found["fields"]["weights"][1]] == ["cc"]
    found = verify.verified(receipt(OLD), Served(replace(OLD, version="z")))
    assert found["fields"].keys() == {"weights"}


def test_weights_that_change_while_they_verify_are_not_compared() -> None:
    found = verify.verified(receipt(OLD), Served(OLD, NEW))
    assert found["outcome"] == "not_comparable"
    assert "try once more" in found["reason"]


def test_a_part_without_tokens_is_none() -> None:
    spans = OLD, at(4, MIDDLE), at(12, NEW)
    presented = Presented.read(receipt(*spans[:2]))
    late = replace(presented.receipt, weights=spans)
    assert [(part.first, part.end) for part in parts_of(late)] == [(0, 4), (4, 12)]
    cut = replace(late, output=replace(late.output, count=3))
    assert [(part.first, part.end) for part in parts_of(cut)] == [(0, 3)]
    with pytest.raises(NotComparable, match="no tokens"):
        parts_of(replace(late, output=TokensDigest.of(())))


def test_a_difference_in_a_later_part_has_its_place_in_the_answer() -> None:
    forged = receipt(OLD, at(4, NEW))
    forged["token_ids"][7] = 99
    found = verify.verified(forged, Served(NEW))
    right = receipt(OLD, at(4, NEW))["token_ids"][7]
    assert found["difference"] == {"position": 7, "known": True, "recorded": 99, "computed": right}
    assert found["altered"] == ["output"]


GOES_ON = {"finish": ("stop", "the answer goes on")}


@pytest.mark.parametrize(
    ("sampling", "finish", "fields"),
    [
        ({}, "length", {}),
        ({}, "stop", {"finish": ("stop", "length")}),
        ({"max_tokens": 13}, "length", {"sampling.max_tokens": (13, 12)}),
        ({"max_tokens": 13}, "stop", GOES_ON),
        ({"max_tokens": 11}, "length", {"sampling.max_tokens": (11, 12)}),
        ({"max_tokens": 11}, "stop", {"sampling.max_tokens": (11, 12), "finish": ("stop", "length")}),
        ({"min_tokens": 13}, "length", {"sampling.min_tokens": (13, 12)}),
        ({"min_tokens": 12}, "length", {}),
    ],
)
def test_how_an_answer_ended_is_compared(
    sampling: dict[str, Any], finish: str, fields: dict[str, tuple[Any, Any]]
) -> None:
    made = receipt(OLD)
    forged = made | {"sampling": made["sampling"] | sampling, "finish": finish}
    found = verify.verified(forged | {"digest": Presented.read(forged).receipt.digest}, Served(OLD))
    assert found["altered"] == []
    assert found["fields"] == fields


def test_an_answer_that_stops_at_its_last_possible_token_has_stopped() -> None:
    tokens = receipt(OLD)["token_ids"]
    first = tokens.index(tokens[4])
    stopped = receipt(OLD, sampling={"stop_token_ids": [tokens[4]]})
    assert (stopped["finish"], stopped["output"]["count"]) == ("stop", first + 1)
    assert verify.verified(stopped, Served(OLD))["outcome"] == "equal"


def test_penalties_of_all_tokens_are_computed_again_with_all_of_them() -> None:
    """In an answer of one part; of several, they are refused by name."""
    for name in ("presence_penalty", "frequency_penalty"):
        asked = {"sampling": {name: 0.5}}
        assert verify.verified(receipt(OLD, **asked), Served(OLD))["outcome"] == "equal"
        found = verify.verified(receipt(OLD, at(4, NEW), **asked), Served(NEW))
        assert f"changed at token 4, and {name}" in found["reason"]


def test_an_activated_adapter_that_begins_elsewhere_is_refused() -> None:
    made = receipt(OLD, at(4, NEW), adapter_digest=b"a" * 32, adapter_start=1)
    assert verify.verified(made, Served(NEW))["outcome"] == "partly_equal"

    class Later(Served):
        def answer(self, body: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
            return super().answer(body, adapter.replace("@1", "@5"))

    found = verify.verified(made, Later(NEW))
    assert "tokens that activate the adapter" in found["reason"]


def test_min_tokens_and_stop_strings_of_earlier_parts_are_left_out() -> None:
    made = receipt(OLD, at(4, NEW), sampling={"min_tokens": 6})
    service = Served(NEW)
    verify.verified(made, service)
    assert [(body["max_tokens"], body["min_tokens"]) for body in service.bodies] == [(8, 2)]
    assert service.bodies[0]["prompt"] == [*PROMPT, *made["token_ids"][:4]]
    service = Served(OLD)
    verify.verified(made, service)
    assert (service.bodies[1]["max_tokens"], service.bodies[1]["min_tokens"]) == (4, 4)


def test_the_number_of_images_is_that_of_the_receipt() -> None:
    image = worker_pb2.MediaItem(digest=b"i" * 32, offset=0, length=1)
    made = receipt(OLD, media=[image])
    service = Served(OLD)
    for images, words in (
        ([], "--request"),
        ([ImageSource("u")] * 2, "the request has 2 images, the prompt of the receipt 1"),
        ([ImageSource("", uuid="mine")], "'mine' of the request has only a name"),
    ):
        assert words in verify.verified(made, service, images=images)["reason"]
    assert not service.bodies
    found = verify.verified(made, service, images=[ImageSource("u", "low")])
    assert service.bodies[0]["images"] == [{"url": "u", "detail": "low"}]
    assert found["fields"].keys() == {"media.0"}  # this service computed without it


def test_adapters_keep_their_names_at_a_service_with_another_name() -> None:
    asked = []

    class Api:
        def post(self, path: str, body: Any) -> Any:
            asked.append((path, body["model"]))
            return {"scores": [[0.5, 0.25]]}

    for served, renames in ((None, False), ("large", True)):
        computer = OnService(Api(), served)  # type: ignore[arg-type]
        assert computer.renames is renames
        for adapter in ("", "ab"):
            computer.answer({"model": "m"}, adapter)
            computer.logprobs("m", [1], [2, 3], adapter)
    of_completions = [model for path, model in asked if path == "/v1/completions"]
    assert of_completions == ["m", "m", "large", "large:m"]
    assert [model for path, model in asked if path == "/v1/score"] == of_completions


def test_a_renamed_model_is_not_compared() -> None:
    made = receipt(OLD)
    presented = Presented.read(made)
    other = made | {"model": "other", "digest": replace(presented.receipt, model="other").digest}
    service = Served(OLD)
    assert verify.verified(other, service)["fields"] == {"model": ("other", "small")}
    service.renames = True
    assert verify.verified(other, service)["outcome"] == "equal"


def test_the_worst_outcome_is_that_of_all() -> None:
    order = [Outcome.DIFFERS, Outcome.NOT_COMPARABLE, Outcome.PARTLY_EQUAL, Outcome.EQUAL]
    for number, worst in enumerate(order):
        assert of_all(order[number:][::-1]) is worst


def test_a_receipt_of_digests_is_located_by_its_pages() -> None:
    made = receipt(OLD, detail=Detail.DIGESTS, sampling={"max_tokens": 40})
    assert len(made["pages"]) == 2
    assert verify.verified(made, Served(OLD), PROMPT)["outcome"] == "equal"
    assert "--prompt-ids" in verify.verified(made, Served(OLD))["reason"]
    forged = made | {"pages": made["pages"][:1]}
    forged["digest"] = Presented.read(forged).receipt.digest
    found = verify.verified(forged, Served(OLD), PROMPT)
    assert (found["outcome"], found["altered"], found["difference"]) == ("differs", ["pages"], None)
    found = verify.verified(made, Served(replace(NEW, digest="aa")), PROMPT)
    assert found["difference"] == {"position": 0, "known": False, "recorded": None, "computed": None}
    assert found["altered"] == []


def test_an_answer_that_was_cut_differs_at_its_end() -> None:
    made = receipt(OLD)
    *tokens, last = made["token_ids"]
    found = verify.verified(made | {"token_ids": tokens}, Served(OLD))
    assert found["difference"] == {"position": 11, "known": True, "recorded": None, "computed": last}
    longer = verify.verified(made | {"token_ids": [*tokens, last, 9]}, Served(OLD))
    assert (longer["outcome"], longer["altered"]) == ("differs", ["output", "pages"])


def test_stop_strings_are_searched_in_the_first_part_alone() -> None:
    made = receipt(OLD, at(4, NEW), sampling={"stop": ["x"]})
    for served, bodies in ((NEW, [None]), (OLD, [None, ["x"]])):
        service = Served(served)
        found = verify.verified(made, service)
        assert [body.get("stop") for body in service.bodies] == bodies
        assert found["outcome"] == "partly_equal"
        assert not found["fields"]


@pytest.mark.parametrize(
    ("kind", "text", "field"),
    [
        ("json_schema", '{"type":"object"}', {"json": '{"type":"object"}'}),
        ("regex", "a*", {"regex": "a*"}),
        ("choice", '["a","b"]', {"choice": ["a", "b"]}),
        ("ebnf", 'root ::= "a"', {"grammar": 'root ::= "a"'}),
    ],
)
def test_a_grammar_is_asked_for_by_its_kind(kind: str, text: str, field: dict[str, Any]) -> None:
    value = sampling_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind.upper()}")
    made = receipt(OLD, sampling={"grammar": sampling_pb2.Grammar(kind=value, text=text)})
    service = Served(OLD)
    verify.verified(made, service)
    assert service.bodies[0]["structured_outputs"] == field
    assert "min_tokens" not in service.bodies[0]
