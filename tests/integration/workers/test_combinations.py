"""Hypothesis combines what workers do, with real models: kinds of KV, 8 bits, tiers, drafts, grammars,
samples and log-probabilities, adapters, cached prefixes, preemption, handoffs, migrations and retries, many
at a time.

Every answer is that of an engine which does one request at a time and none of all that; the tokens of such
engines are compared with transformers, and with adapters merged by PEFT, elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.origin import namespace_of
from engine.adapters.peft_folder import read_adapter
from engine.config import LoraConfig, Policy, SpeculationConfig
from engine.core.request import Request
from engine.loop.engine import Engine
from engine.model_config.model_spec import ModelSpec
from engine.speculation.kinds import DrafterKind
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.eagle_head import HeadShape, TrainableHead
from tests.faults.support.small_model import _llama, save_small_model
from tests.integration.models.kinds_of_kv import KINDS
from tests.integration.tiny_cluster import PATIENCE_S, Link, work, worker
from tests.unit.engine.adapters.peft_oracle import save_adapter
from tests.unit.engine.grammar.test_structured_output import GRAMMARS
from tests.unit.tiny import make_config
from worker.config import TierConfig, WorkerRole
from worker.session.convert import request_from_proto

MODEL_ONLY = frozenset({DrafterKind.MODEL})
SHAPE: dict[str, Any] = {"max_model_len": 160, "page_size": 4}
ANSWER = 24
LORA = LoraConfig(max_loras=1, max_lora_rank=4, max_cpu_loras=2)
"""Requests of two adapters wait for the one slot."""
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "out_proj"]
"""Layers of attention and of recurrence, of all kinds of models."""


@dataclass(frozen=True)
class Style:
    """An adapter on disk."""

    path: Path
    digest: bytes


@dataclass(frozen=True)
class Question:
    prompt: tuple[int, ...]
    way: str
    """One worker, or two: the prompt is handed over, or the running answer moves."""
    priority: int
    sampling: tuple[tuple[str, Any], ...]
    style: int | None
    """Number of its adapter."""

    def work(self, styles: Sequence[Style], output: list[int] | None = None) -> worker_pb2.Work:
        sampling = dict(self.sampling)
        if (grammar := sampling.get("grammar")) is not None:
            sampling["grammar"] = to_proto(grammar)
        job = work(self.prompt, **{"max_tokens": ANSWER} | sampling)
        job.priority = self.priority
        if self.style is not None:
            style = styles[self.style]
            job.adapter, job.adapter_path, job.adapter_digest = style.path.name, str(style.path), style.digest
            job.namespace = namespace_of(adapter=style.digest)
        job.output.extend(output or ())
        return job


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    logprobs: list[float]


@dataclass
class Client:
    """Takes events of the workers that answer a question."""

    question: Question
    styles: Sequence[Style]
    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, float] = field(default_factory=dict)
    ended: bool = False

    @property
    def output(self) -> list[int]:
        return [self.tokens[i] for i in range(len(self.tokens))]

    async def until(self, link: Link, request_id: int, *kinds: str, tokens: int = ANSWER + 1) -> str:
        """Take events until the answer ends, has `tokens`, or one of these kinds comes; returns which."""
        while len(self.tokens) < tokens:
            async with asyncio.timeout(PATIENCE_S):
                kind, event = await link.events[request_id].get()
            if kind == "tokens":
                for place, token in enumerate(event.ids):
                    position = event.position + place
                    assert self.tokens.setdefault(position, token) == token, "two workers disagree"
                    if event.logprobs:
                        self.logprobs[position] = event.logprobs[place].logprob
                self.ended |= bool(event.finish)
                if self.ended:
                    return "tokens"
            elif kind in kinds:
                return kind
            else:
                assert kind != "failed", event
        return "tokens"

    async def alone(self, link: Link) -> None:
        job = self.question.work(self.styles, self.output)
        await link.submit(job)
        await self.until(link, job.request_id)

    async def handed_over(self, source: Link, target: Link) -> None:
        job = self.question.work(self.styles)
        await source.submit(job, handoff=True)
        await self.until(source, job.request_id, "started")
        # Two full pools must not wait for each other.
        peer = (await source.stub.Describe(worker_pb2.DescribeRequest())).peer
        no_wait = source.host is max(source.host, target.host, key=id)
        reserve = worker_pb2.Reserve(work=job, sender=peer, timeout_s=PATIENCE_S, no_wait=no_wait)
        await target.send(reserve=reserve)
        kind, event = await target.events[job.request_id].get()
        if kind == "reserved":
            await source.send(attach=worker_pb2.Attach(ticket=event.ticket))
            await self.until(source, job.request_id, tokens=1)
            if not self.ended:
                await self.until(target, job.request_id)
        else:
            await source.abort(job.request_id)
            await self.alone(target)
        await target.abort(job.request_id)

    async def moved(self, source: Link, target: Link) -> None:
        here = self.question.work(self.styles)
        await source.submit(here)
        await self.until(source, here.request_id, tokens=3)
        if self.ended:
            return
        there = self.question.work(self.styles, self.output)
        peer = (await source.stub.Describe(worker_pb2.DescribeRequest())).peer
        reserve = worker_pb2.Reserve(
            work=there, sender=peer, timeout_s=PATIENCE_S, room_tokens=ANSWER, no_wait=True
        )
        await target.send(reserve=reserve)
        kind, event = await target.events[there.request_id].get()
        if kind == "reserved":
            await source.send(migrate=worker_pb2.Migrate(request_id=here.request_id, ticket=event.ticket))
        if await self.until(source, here.request_id, "handed_off") == "handed_off":
            await self.until(target, there.request_id)
        await target.abort(there.request_id)

    async def begun_again(self, first: Link, second: Link) -> None:
        job = self.question.work(self.styles)
        await first.submit(job)
        await self.until(first, job.request_id, tokens=4)
        await first.abort(job.request_id)
        if not self.ended:
            await self.alone(second)

    async def ask(self, a: Link, b: Link) -> None:
        match self.question.way:
            case "a":
                await self.alone(a)
            case "b":
                await self.alone(b)
            case "a to b":
                await self.handed_over(a, b)
            case "b to a":
                await self.handed_over(b, a)
            case "moved":
                await self.moved(a, b)
            case _:
                await self.begun_again(b, a)


class Model:
    """A model's folder, perhaps with a head that drafts for it, and the answers of the plain engine."""

    def __init__(self, folder: Path, kind: Callable[..., Any]) -> None:
        self.folder = folder / "model"
        save_small_model(self.folder, kind)
        self.styles = [_style(self.folder, folder / f"style{number}", number) for number in range(2)]
        self.head: Path | None = None
        if kind in (_llama, KINDS[0]):
            self.head = folder / "head"
            spec = ModelSpec.from_folder(self.folder)
            shape = HeadShape(
                vocab_size=spec.vocab_size,
                draft_vocab_size=spec.vocab_size // 2,
                hidden_size=spec.hidden_size,
                intermediate_size=spec.intermediate_size,
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                max_position=spec.max_position,
                layers=(0, 1),
            )
            TrainableHead(shape, torch.arange(shape.draft_vocab_size)).save(self.head)
        self._engines: dict[bool, Engine] = {}
        self._known: dict[tuple[bool, Question], Answer] = {}

    def answer(self, question: Question, fp8_kv: bool) -> Answer:
        key = fp8_kv, question
        if key not in self._known:
            self._known[key] = self._computed(question, fp8_kv)
        return self._known[key]

    def _computed(self, question: Question, fp8_kv: bool) -> Answer:
        if fp8_kv not in self._engines:
            config = make_config(
                self.folder, **SHAPE, fp8_kv=fp8_kv, radix_cache=False, num_pages=128, lora=LORA
            )
            self._engines[fp8_kv] = Engine(config)
            for style in self.styles:
                adapters = self._engines[fp8_kv].adapters
                adapters.add(adapters.read(style.path.name, style.path))
        engine = self._engines[fp8_kv]
        request: Request = request_from_proto(question.work(self.styles), 0.0)
        engine.submit(request)
        logprobs: list[float] = []
        while engine.has_work:
            logprobs += [token.logprobs.logprob for token in engine.step().tokens if token.logprobs]
        return Answer(request.output, logprobs)


def _style(base: Path, folder: Path, seed: int) -> Style:
    save_adapter(base, folder, seed, target_modules=ADAPTED)
    return Style(folder, read_adapter(folder.name, folder).digest)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    folder = tmp_path_factory.mktemp("models")
    return [Model(folder / kind.__name__, kind) for kind in (_llama, *KINDS)]


def to_proto(number: int) -> sampling_pb2.Grammar:
    kinds = sampling_pb2.GrammarKind.Value
    names = ["JSON_SCHEMA", "REGEX", "CHOICE", "EBNF"]
    return sampling_pb2.Grammar(kind=kinds(f"GRAMMAR_KIND_{names[number]}"), text=GRAMMARS[number].text)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    start = draw(st.sampled_from([0, 0, 12, 40]))
    prompt = [2 + (i * i * 7 + start) % 290 for i in range(start)]
    prompt += [2 + (draw(st.integers(0, 5)) * 31 + i) % 290 for i in range(draw(st.integers(1, 30)))]
    sampling: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9, "top_k": 40}])
    )
    if (logprobs := draw(st.sampled_from([None, None, 0, 2]))) is not None:
        sampling = sampling | {"logprobs": logprobs}
    grammar = draw(st.sampled_from([None, None, 0, 1, 2, 3]))
    if grammar is not None:
        sampling = sampling | {"grammar": grammar, "ignore_eos": False}
    if draw(st.integers(0, 4)) == 0:
        sampling = sampling | {"presence_penalty": 0.5, "repetition_penalty": 1.1}
    way = draw(st.sampled_from(["a", "b", "a to b", "b to a", "moved", "again"]))
    style = draw(st.sampled_from([None, None, 0, 1]))
    return Question(tuple(prompt), way, draw(st.integers(0, 2)), tuple(sampling.items()), style)


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    drafter = draw(st.sampled_from([None, "suffix", "model", "head"]))
    return {
        "drafter": drafter,
        "overlap": draw(st.booleans()),
        "chunk_budget": draw(st.sampled_from([8, 32])),
        "fp8_kv": draw(st.sampled_from([False, False, True])),
        "blocks": draw(st.sampled_from([42, 60, 200])),
        "tiers": draw(st.booleans()),
        "priorities": draw(st.booleans()),
    }


def speculation(model: Model, dense: Model, drafter: str | None) -> SpeculationConfig | None:
    if drafter is None:
        return None
    path = {"model": dense.folder, "head": model.head}.get(drafter)
    if path is None:
        return SpeculationConfig(num_draft_tokens=4, adaptive=False)
    return SpeculationConfig(num_draft_tokens=4, adaptive=False, drafters=MODEL_ONLY, model_path=path)


def settings_of(model: Model, dense: Model, drawn: dict[str, Any]) -> dict[str, Any]:
    """`dense`: a model that drafts for it."""
    groups = len(ModelSpec.from_folder(model.folder).kv_groups)
    num_pages = drawn["blocks"] * groups
    order = {"policy": Policy.PRIORITY, "priority_preemption_threshold": 0} if drawn["priorities"] else {}
    return {
        **SHAPE,
        **order,
        "num_pages": num_pages,
        "chunk_budget": drawn["chunk_budget"],
        "overlap": drawn["overlap"],
        "fp8_kv": drawn["fp8_kv"],
        "max_running_requests": 4,
        "lora": LORA,
        "speculation": speculation(model, dense, drawn["drafter"]),
        "tiers": TierConfig(host_bytes=1 << 20) if drawn["tiers"] else None,
    }


@given(
    number=st.integers(0, len(KINDS)), drawn=engines(), asked=st.lists(questions(), min_size=4, max_size=8)
)
@settings(
    max_examples=settings.default.max_examples // 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_answer_is_that_of_a_plain_engine(
    models: list[Model], number: int, drawn: dict[str, Any], asked: list[Question]
) -> None:
    model = models[number]
    expected = [model.answer(question, drawn["fp8_kv"]) for question in asked]

    async def run() -> None:
        async with AsyncExitStack() as stack:
            common = settings_of(model, models[0], drawn)
            a, b = [
                await stack.enter_async_context(
                    worker(model.folder, WorkerRole.DECODE, "loopback", name, **common)
                )
                for name in "ab"
            ]
            for _ in range(2):  # the second time, prefixes are cached
                clients = [Client(question, model.styles) for question in asked]
                await asyncio.gather(*(client.ask(a, b) for client in clients))
                for client, answer in zip(clients, expected, strict=True):
                    assert client.output == answer.tokens, client.question
                    for position, logprob in client.logprobs.items():
                        assert logprob == pytest.approx(answer.logprobs[position], abs=2e-3)
            await a.all_pages_back()
            await b.all_pages_back()

    asyncio.run(run())
