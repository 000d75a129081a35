"""Whatever an answer depends on is in its receipt, and cannot be changed there unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest

from common.origin import activation_key, media_keys
from engine.config import UNIFORM
from router.api.generation.audit.answer import Answer, Detail, Issuer
from router.api.generation.audit.receipts import (
    PAGE_TOKENS,
    Presented,
    Receipt,
    ReceiptError,
    WeightsSpan,
    issued,
    receipt_of,
)
from router.api.generation.text.chat_template import ChatTemplate
from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.engine_config import engine_config
from tests.unit.router.api.generation.text.tokenizers import byte_level

PROMPT = list(range(20, 60))
TOKENS = list(range(7, 31))


def tokenizer(template: str = "{{ messages }}", special: str = "<s>") -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens([special])
    return Tokenizer(backend, vocab_size=400, chat_template=ChatTemplate(template, {}))


SAMPLING: dict[str, Any] = {"max_tokens": 24, "temperature": 0.5, "top_p": 0.9, "seed": 3}
WORK: dict[str, Any] = {"prompt": PROMPT, "adapter_digest": b"a" * 32, "namespace": b"n" * 32}
IMAGE = worker_pb2.MediaItem(digest=b"i" * 32, offset=4, length=6)
ISSUER = Issuer("small", "ab", "float32 on cpu", tokenizer())
SPANS = [WeightsSpan(first=0, digest="ab"), WeightsSpan(first=4, digest="cd", version="2")]


def made(
    issuer: Issuer = ISSUER,
    spans: list[WeightsSpan] = SPANS,
    tokens: list[int] = TOKENS,
    stops: tuple[str, ...] = ("end",),
    finish: int = sampling_pb2.FINISH_REASON_LENGTH,
    media: list[worker_pb2.MediaItem] = [IMAGE],  # noqa: B006
    **changes: Any,
) -> tuple[Receipt, Answer]:
    sampling = sampling_pb2.SamplingParams(**SAMPLING | changes.pop("sampling", {}))
    work = worker_pb2.Work(sampling=sampling, media=media, **WORK | changes)
    if not work.prompt_keys:
        keys = list(work.prompt)
        for item in media:
            keys[item.offset : item.offset + item.length] = media_keys(item.digest, range(item.length))
        if work.HasField("adapter_start"):
            keys[work.adapter_start] = activation_key(work.adapter_digest, keys[work.adapter_start])
        work.prompt_keys.extend(keys)
    answer = Answer(work, stops, tokens, finish, ())
    return receipt_of(answer, issuer, spans), answer


def written(detail: Detail = Detail.TOKENS, **inputs: Any) -> dict[str, Any]:
    receipt, answer = made(**inputs)
    return dict(json.loads(json.dumps(issued(receipt, answer, detail))))


INPUTS: list[tuple[dict[str, Any], set[str]]] = [
    ({"issuer": replace(ISSUER, model="other")}, {"model"}),
    ({"issuer": replace(ISSUER, shape="cd")}, {"config"}),
    ({"issuer": replace(ISSUER, numerics="bfloat16 on cpu")}, {"numerics"}),
    ({"issuer": replace(ISSUER, tokenizer=tokenizer("{{ messages}}"))}, {"template"}),
    ({"issuer": replace(ISSUER, tokenizer=tokenizer(special="<t>"))}, {"tokenizer"}),
    ({"spans": SPANS[:1]}, {"weights"}),
    ({"spans": [SPANS[0], replace(SPANS[1], first=5)]}, {"weights"}),
    ({"spans": [SPANS[0], replace(SPANS[1], digest="ce")]}, {"weights"}),
    ({"spans": [SPANS[0], replace(SPANS[1], version="3")]}, {"weights"}),
    ({"tokens": [*TOKENS[:-1], 99]}, {"output", "pages"}),
    ({"tokens": TOKENS[:-1]}, {"output", "pages"}),
    ({"prompt": [*PROMPT[:-1], 99]}, {"prompt", "pages"}),
    ({"prompt_keys": [-5, *PROMPT[1:]]}, {"pages"}),
    ({"media": []}, {"media", "pages"}),
    ({"media": [IMAGE, IMAGE]}, {"media"}),
    ({"media": [worker_pb2.MediaItem(digest=b"j" * 32, offset=4, length=6)]}, {"media", "pages"}),
    ({"media": [worker_pb2.MediaItem(digest=b"i" * 32, offset=5, length=6)]}, {"media", "pages"}),
    ({"media": [worker_pb2.MediaItem(digest=b"i" * 32, offset=4, length=5)]}, {"media", "pages"}),
    ({"adapter_digest": b"b" * 32}, {"adapter"}),
    ({"adapter_start": 20}, {"adapter", "pages"}),
    ({"namespace": b"m" * 32}, {"namespace", "pages"}),
    ({"stops": ()}, {"sampling"}),
    ({"finish": sampling_pb2.FINISH_REASON_STOP}, {"finish"}),
    ({"sampling": {"seed": 4}}, {"sampling"}),
    ({"sampling": {"temperature": 0.50001}}, {"sampling"}),
    ({"sampling": {"top_p": 0.8}}, {"sampling"}),
    ({"sampling": {"top_k": 3}}, {"sampling"}),
    ({"sampling": {"min_p": 0.1}}, {"sampling"}),
    ({"sampling": {"max_tokens": 10}}, {"sampling"}),
    ({"sampling": {"min_tokens": 2}}, {"sampling"}),
    ({"sampling": {"repetition_penalty": 1.1}}, {"sampling"}),
    ({"sampling": {"presence_penalty": 0.1}}, {"sampling"}),
    ({"sampling": {"frequency_penalty": 0.1}}, {"sampling"}),
    ({"sampling": {"stop_token_ids": [5]}}, {"sampling"}),
    ({"sampling": {"ignore_eos": True}}, {"sampling"}),
    ({"sampling": {"logit_bias": {5: 1.0}}}, {"sampling"}),
    ({"sampling": {"grammar": sampling_pb2.Grammar(kind=2, text="a*")}}, {"sampling"}),
]


@pytest.mark.parametrize(("change", "names"), INPUTS)
def test_each_input_changes_its_fields_and_the_digest(change: dict[str, Any], names: set[str]) -> None:
    before, after = made()[0], made(**change)[0]
    differ = {f.name for f in fields(Receipt) if getattr(before, f.name) != getattr(after, f.name)}
    assert differ == names
    assert before.digest != after.digest


def test_kind_and_text_of_a_grammar_are_in_it_and_counts_of_tokens() -> None:
    grammars = [sampling_pb2.Grammar(kind=kind, text=text) for kind in (2, 3) for text in ("a*", "b*")]
    receipts = [made(sampling={"grammar": grammar})[0] for grammar in grammars]
    assert len({receipt.digest for receipt in receipts}) == len(grammars)
    counts = receipts[0].prompt.count, receipts[0].output.count
    assert counts == (len(PROMPT), len(TOKENS))


def test_these_are_all_sampling_parameters_and_all_fields() -> None:
    changed = {name for change, _ in INPUTS for name in change.get("sampling", ())}
    known = {field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields}
    silent = {"logprobs", "prompt_logprobs", "logprob_token_ids", "drafts"}
    assert known == changed | silent | {"stop"}
    of_fields = {name for _, names in INPUTS for name in names}
    assert {field.name for field in fields(Receipt)} == of_fields | {"version"}


@pytest.mark.parametrize(
    "change", [{"logprobs": 3}, {"prompt_logprobs": 1}, {"drafts": sampling_pb2.DraftHints(off=True)}]
)
def test_what_is_reported_and_drafted_is_not_in_it(change: dict[str, Any]) -> None:
    assert made(sampling=change)[0] == made()[0]


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"device": "cuda:1"},
        {"quantization": "fp8"},
        {"fp8_kv": True},
        {"attention_backend": UNIFORM},
    ],
    ids=str,
)
def test_numerics_name_what_rounds(change: dict[str, Any]) -> None:
    plain = {"dtype": "float32", "device": "cpu"}
    before, after = engine_config(**plain).numerics, engine_config(**plain | change).numerics
    assert before == "float32 on cpu" != after
    (named,) = change.values()
    assert {True: "fp8 KV", UNIFORM: "reproducible", "cuda:1": "cuda"}.get(named, named) in after


def test_a_greedy_answer_has_no_seed() -> None:
    one, other = (made(sampling={"temperature": 0.0, "seed": seed})[0] for seed in (1, 2))
    assert one == other
    assert "seed" not in one.sampling


def leaves(value: Any, *path: Any) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for name in value for leaf in leaves(value[name], *path, name)]
    if isinstance(value, list):
        return [leaf for index in range(len(value)) for leaf in leaves(value[index], *path, index)]
    return [path]


def altered(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case _:
            return f"0{value}"[: max(len(value), 1)] if value[:1] != "0" else f"1{value[1:]}"


@pytest.mark.parametrize("path", leaves(written()), ids=lambda path: ".".join(map(str, path)))
def test_a_change_anywhere_in_a_receipt_is_found(path: tuple[Any, ...]) -> None:
    receipt = deepcopy(written())
    *way, last = path
    place: Any = receipt
    for step in way:
        place = place[step]
    place[last] = altered(place[last])
    try:
        changes = Presented.read(receipt).changes()
    except ReceiptError:
        assert path in {("version",), ("weights", 0, "first")}
        return
    expected = {"prompt_token_ids": "prompt", "token_ids": "output"}.get(path[0], "receipt")
    assert expected in changes


def test_an_unchanged_receipt_is_accepted_also_from_a_program_that_writes_json_otherwise() -> None:
    for detail in Detail:
        receipt = written(detail)
        assert Presented.read(receipt).changes() == []
        shuffled = dict(reversed(receipt.items()))
        assert Presented.read(json.loads(json.dumps(shuffled, indent=1))).changes() == []
    assert not {"prompt_token_ids", "token_ids"} & written(Detail.DIGESTS).keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda receipt: receipt.pop("weights"),
        lambda receipt: receipt.update(surprise=1),
        lambda receipt: receipt.update(version=2),
        lambda receipt: receipt["prompt"].update(more=1),
        lambda receipt: receipt.update(token_ids=["a"]),
        lambda receipt: receipt.update(namespace="xyz"),
        lambda receipt: receipt.update(token_ids=[-1]),
    ],
)
def test_what_is_no_receipt_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    receipt = written()
    change(receipt)
    with pytest.raises(ReceiptError):
        Presented.read(receipt)


def test_pages_are_chained_and_partial_ones_left_out() -> None:
    one, other = made()[0].pages, made(tokens=[1, *TOKENS[1:]])[0].pages
    assert len(one) == (len(PROMPT) + len(TOKENS)) // PAGE_TOKENS == 4
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False]


def test_the_chain_of_a_prompt_with_media_and_an_activated_adapter_is_that_of_its_keys() -> None:
    for start in (2, 3, 20):
        receipt, _ = made(adapter_start=start)
        assert receipt.chain(PROMPT, TOKENS) == receipt.pages
        moved = replace(receipt, media=(replace(receipt.media[0], offset=38),))
        assert moved.chain(PROMPT, TOKENS) == ()


@pytest.mark.parametrize("firsts", [[], [1], [0, 0], [0, 5, 5], [0, 9, 4]])
def test_weights_without_an_order_of_tokens_are_refused(firsts: list[int]) -> None:
    weights = [{"first": first, "digest": "ab", "version": ""} for first in firsts]
    with pytest.raises(ReceiptError, match="weights: their first tokens"):
        Presented.read(written() | {"weights": weights})


def test_details_are_asked_for_by_name() -> None:
    assert [Detail.asked(value) for value in (None, False, "", True, "tokens", "digests")] == [
        *[None] * 3,
        *[Detail.TOKENS] * 2,
        Detail.DIGESTS,
    ]
    with pytest.raises(InvalidRequest, match="tokens or digests"):
        Detail.asked("all")
