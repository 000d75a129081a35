"""Constrained requests in an engine: the tokens of a reference loop, whatever happens to the request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core.events import StepOutput
from engine.core.request import Request
from engine.core.sampling_params import FinishReason, SamplingParams
from engine.errors import GrammarError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.matcher import fill_masks
from engine.loop.engine import Engine
from engine.model_config.model_spec import ModelSpec
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.unit.tiny import make_config

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
    Grammar(GrammarKind.REGEX, r"[a-f]{3}-[0-9]{2,10}"),
    Grammar(GrammarKind.CHOICE, '["the quick", "the brown", "lazy"]'),
    Grammar(GrammarKind.EBNF, 'root ::= "(" root ")" | [0-9]+ "."'),
]
PROMPTS = [
    torch.randint(2, 300, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in (5, 40, 1, 23)
]
MAX_TOKENS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"))


@torch.inference_mode()
def reference(model: SmallModel, prompt: Sequence[int], grammar: Grammar) -> list[int]:
    """The most likely tokens that the grammar allows, by transformers and without a KV cache."""
    spec = ModelSpec.from_folder(model.folder)
    matcher = GrammarCompiler(model.folder, spec).matcher(grammar)
    output: list[int] = []
    words = np.zeros((1, -(-spec.vocab_size // 32)), dtype=np.int32)
    while len(output) < MAX_TOKENS and not set(output) & set(spec.eos_token_ids):
        logits = model.model(torch.tensor([[*prompt, *output]])).logits[0, -1]
        matcher.advance(output)
        assert fill_masks([matcher], words) == [None]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: spec.vocab_size]
        output.append(int(logits.masked_fill(torch.from_numpy(bits == 0), -torch.inf).argmax()))
    return output


@pytest.fixture(scope="module")
def expected(model: SmallModel) -> list[list[int]]:
    return [reference(model, prompt, grammar) for prompt, grammar in zip(PROMPTS, GRAMMARS, strict=True)]


def config(model: SmallModel, **changes: object) -> EngineConfig:
    return make_config(model.folder, max_model_len=256, **changes)


def requests(**sampling: Any) -> list[Request]:
    """One with each grammar, and two without."""
    greedy = SamplingParams(max_tokens=MAX_TOKENS, **sampling)
    free = replace(greedy, ignore_eos=True)
    return [
        *(
            Request(id=i, prompt=prompt, sampling=replace(greedy, grammar=grammar))
            for i, (prompt, grammar) in enumerate(zip(PROMPTS, GRAMMARS, strict=True))
        ),
        *(Request(id=10 + i, prompt=prompt, sampling=free) for i, prompt in enumerate(PROMPTS[:2])),
    ]


def run(engine: Engine, *submitted: Request) -> list[StepOutput]:
    for request in submitted:
        engine.submit(request)
    outputs = []
    while engine.has_work:
        outputs.append(engine.step())
    engine.check_pages()
    return outputs


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("num_pages", [128, 40], ids=["roomy", "preempting"])
@pytest.mark.parametrize("chunk_budget", [8, None])
def test_constrained_tokens_are_those_of_a_reference_loop(
    model: SmallModel,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
    num_pages: int,
    chunk_budget: int | None,
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    engine = Engine(config(model, num_pages=num_pages, chunk_budget=chunk_budget, overlap=overlap))
    submitted = requests()
    run(engine, *submitted)
    assert [request.output for request in submitted[: len(GRAMMARS)]] == expected
    assert (engine.scheduler.num_preemptions > 0) == (num_pages == 40)


def test_a_request_without_a_grammar_gets_the_same_tokens_beside_constrained_ones(model: SmallModel) -> None:
    alone = requests()[len(GRAMMARS) :]
    run(Engine(config(model)), *alone)
    beside = requests()
    run(Engine(config(model, num_pages=128, overlap=True)), *beside)
    assert [r.output for r in beside[len(GRAMMARS) :]] == [r.output for r in alone]


@pytest.mark.parametrize("given", [0, 1, 7])
def test_a_request_that_another_worker_began_continues_as_there(
    model: SmallModel, expected: list[list[int]], given: int
) -> None:
    continued = requests()[: len(GRAMMARS)]
    for request, tokens in zip(continued, expected, strict=True):
        request.output = tokens[: min(given, len(tokens) - 1)]
    run(Engine(config(model, num_pages=128, overlap=True)), *continued)
    assert [request.output for request in continued] == expected


def test_a_request_whose_kv_arrives_continues_after_the_token_that_came_with_it(
    model: SmallModel, expected: list[list[int]]
) -> None:
    first, second = (Engine(config(model, overlap=True)) for _ in range(2))
    prompt, grammar = PROMPTS[0], GRAMMARS[0]
    sampling = SamplingParams(max_tokens=1, grammar=grammar)
    prefill = Request(id=1, prompt=prompt, sampling=sampling)
    run(first, prefill)
    decode = Request(id=1, prompt=prompt, sampling=replace(sampling, max_tokens=MAX_TOKENS))
    reservation = second.reserve(decode)
    assert reservation is not None
    # Stands for a transport. The first engine's pages were released into its cache, so compute them again.
    source = Request(id=2, prompt=prompt, sampling=sampling)
    first.hooks = _Keeping()
    run(first, source)
    pages = source.pages[: len(reservation.incoming)]
    second.runner.kv.tensor[reservation.incoming] = first.runner.kv.tensor[pages]
    decode.output.append(prefill.output[0])
    second.admit_remote(decode, reservation, decode.num_tokens - 1)
    run(second)
    assert decode.output == expected[0]


class _Keeping:
    def on_started(self, requests: Sequence[Request]) -> None:
        pass

    def on_computed(self, request: Request, upto: int) -> None:
        pass

    def on_finished(self, request: Request) -> bool:
        return True


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.5, "top_k": 3, "top_p": 0.8, "min_p": 0.1, "seed": 6},
        {"temperature": 0.7, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "seed": 7, "logprobs": 3},
    ],
    ids=["drawn", "truncated", "penalised"],
)
def test_sampled_outputs_follow_their_grammar_and_overlap_changes_none(
    model: SmallModel, sampling: dict[str, Any]
) -> None:
    compiler = GrammarCompiler(model.folder, ModelSpec.from_folder(model.folder))
    outputs = []
    for overlap in (False, True):
        submitted = requests(**sampling)
        run(Engine(config(model, num_pages=128, overlap=overlap)), *submitted)
        outputs.append([request.output for request in submitted])
        for request in submitted[: len(GRAMMARS)]:
            assert request.sampling.grammar is not None
            compiler.matcher(request.sampling.grammar).advance(request.output)  # raises unless it follows
    assert outputs[0] == outputs[1]


def test_logprobs_of_a_constrained_token_are_of_the_models_own_distribution(model: SmallModel) -> None:
    prompt, grammar = PROMPTS[0], Grammar(GrammarKind.CHOICE, '["lazy"]')
    request = Request(id=1, prompt=prompt, sampling=SamplingParams(max_tokens=8, grammar=grammar, logprobs=2))
    steps = run(Engine(config(model, overlap=True)), request)
    told = [token.logprobs for step in steps for token in step.tokens]
    sequence = [*prompt, *request.output]
    with torch.inference_mode():
        logits = model.model(torch.tensor([sequence])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    for logprobs, row, token in zip(told, logits, request.output, strict=True):
        assert logprobs is not None
        assert logprobs.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert logprobs.rank == (row > row[token]).sum() + 1


@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_fails_midway_ends_its_own_request_alone(
    model: SmallModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = Engine(config(model, num_pages=128, overlap=overlap))
    victim, *others = requests()[: len(GRAMMARS)]

    def fill(matchers: Sequence[Any], words: Any, drafts: Any) -> list[GrammarError | None]:
        failures = fill_masks(matchers, words, drafts)
        failing = victim.matcher is not None and len(victim.output) > 3
        return [
            GrammarError("too complex") if failing and matcher is victim.matcher else failure
            for matcher, failure in zip(matchers, failures, strict=True)
        ]

    monkeypatch.setattr("engine.sampling.token_masks.fill_masks", fill)
    steps = run(engine, victim, *others)
    assert [(request.id, str(error)) for step in steps for request, error in step.failed] == [
        (victim.id, "too complex")
    ]
    assert victim.finish is FinishReason.ABORT
    assert victim.output == expected[0][: len(victim.output)]
    assert [request.output for request in others] == expected[1:]
    assert engine.grammars.kept(GRAMMARS[0]) is None, "its lexer may have reached a limit"
    assert engine.grammars.kept(GRAMMARS[1]) is not None


def test_a_grammar_that_cannot_be_compiled_refuses_its_request(model: SmallModel) -> None:
    engine = Engine(config(model))
    bad = Request(
        id=1, prompt=[5], sampling=SamplingParams(max_tokens=4, grammar=Grammar(GrammarKind.REGEX, "["))
    )
    with pytest.raises(GrammarError, match="regular expression"):
        engine.submit(bad)
    with pytest.raises(GrammarError, match="regular expression"):
        engine.reserve(bad)
    assert not engine.has_work


_LEAVES = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -5, "maximum": 5},
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[a-z]{2}$"},
        {"enum": ["a", 1, None]},
        {"const": "fixed"},
    ]
)


def _objects(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["a", "b", "\u00e9", 'q"']), children, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:2],
            "additionalProperties": False,
        }
    )


_SCHEMAS = st.recursive(
    _LEAVES,
    lambda children: st.one_of(
        _objects(children),
        children.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
        st.lists(children, min_size=1, max_size=2).map(lambda any_of: {"anyOf": any_of}),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def overlapping(model: SmallModel) -> Engine:
    return Engine(config(model, overlap=True))


@settings(max_examples=15, deadline=None)
@given(schema=_SCHEMAS, seed=st.integers(0, 1 << 32))
def test_an_output_that_ends_validates_against_its_schema(
    model: SmallModel, overlapping: Engine, schema: dict[str, Any], seed: int
) -> None:
    if "properties" not in schema:
        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]} | {
            "additionalProperties": False
        }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    request = Request(
        id=1,
        prompt=[5, 6, 7],
        sampling=SamplingParams(max_tokens=150, temperature=1.0, seed=seed, grammar=grammar),
    )
    run(overlapping, request)
    if request.finish is FinishReason.STOP:
        jsonschema.validate(json.loads(model.text(request.output)), schema)
    else:
        assert request.finish is FinishReason.LENGTH, "white space and numbers may be long"
