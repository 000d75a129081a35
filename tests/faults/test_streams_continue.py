"""A decode worker ends in the middle of an answer, and the client cannot tell: whatever the sampling."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product

import pytest
from prometheus_client import generate_latest

from engine.grammar.grammar import Grammar, GrammarKind
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.params.constraint import Constraint
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.served_model import ServedModel
from router.command.admin.drain import WorkerDrainer
from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.engine_config import engine_config
from tests.faults.support.local_cluster import LocalWorker
from tests.faults.support.small_model import MAX_LEN, SmallModel
from tests.integration.tiny_cluster import slow_down
from worker.config import WorkerConfig, WorkerRole
from worker.process.host import WorkerHost

ROLES = {WorkerRole.PREFILL: ROLE_PREFILL, WorkerRole.DECODE: ROLE_DECODE}
PROMPT = tuple(range(2, 150))
LENGTH = 120
ATTEMPTS = 5
LETTERS = Constraint(Grammar(GrammarKind.REGEX, "([a-z]{1,9}[ ,;]){500}"), "regex")
OPTIONS = SamplingOptions(max_tokens=LENGTH, ignore_eos=True, seed=11)
SAMPLINGS = {
    "greedy": replace(OPTIONS, temperature=0.0),
    "seeded": OPTIONS,
    "nucleus": replace(OPTIONS, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01),
    "penalties": replace(
        OPTIONS, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.9, temperature=0.7
    ),
    "logprobs": replace(OPTIONS, logprobs=3),
    "min_tokens": replace(OPTIONS, temperature=0.0, min_tokens=40, stop_token_ids=tuple(range(2, 60))),
    "grammar": replace(OPTIONS, ignore_eos=False, constraint=LETTERS),
}


@dataclass
class Cluster:
    generation: Generation
    registry: Registry
    hosts: dict[str, WorkerHost]
    metrics: RouterMetrics

    def retries(self) -> int:
        return generate_latest(self.metrics.registry).decode().count("baton_request_retries_total{")

    def decoding(self) -> list[str]:
        """The worker that decodes the one request; none once all of the answer has arrived."""
        return [s.worker_id for s in self.registry.sessions() if s.load.requests]

    async def kill_decoder(self) -> None:
        for worker in self.decoding():
            await self.hosts[worker].stop()

    async def drain_decoder(self) -> None:
        for worker in self.decoding():
            await WorkerDrainer(self.registry).drain(worker, timeout_s=0.0)


@dataclass
class Answer:
    text: str
    tokens: list[int]
    logprobs: list[sampling_pb2.TokenLogprobs]
    finish: int
    stop: str | int | None


@dataclass
class Worker(LocalWorker):
    async def stop(self) -> None:
        await self.host.stop()

    async def revive(self) -> None:
        raise AssertionError("no test here brings a worker back")


@asynccontextmanager
async def cluster(small: SmallModel, mode: Mode) -> AsyncIterator[Cluster]:
    """Two decode workers, and a prefill worker if there is one in this mode."""
    roles = [WorkerRole.DECODE, WorkerRole.DECODE]
    roles += [WorkerRole.PREFILL] if mode is not Mode.MIXED else []
    engine = engine_config(model_path=small.folder, num_pages=64, max_model_len=MAX_LEN, chunk_budget=64)
    hosts: dict[str, WorkerHost] = {}
    handles = []
    async with AsyncExitStack() as stack:
        for i, role in enumerate(roles):
            name = f"{role.value}-{i}"
            transport = "loopback" if mode is not Mode.MIXED else None
            config = WorkerConfig(
                worker_id=name, role=role, model="small", engine=engine, transport=transport
            )
            hosts[name] = WorkerHost(config, on_death=lambda _: None)
            await hosts[name].start()
            stack.push_async_callback(hosts[name].stop)
            handles.append(Worker(name, ROLES[role], hosts[name]))
        registry = await stack.enter_async_context(Registry(handles))
        assert await registry.wait_for_all(20.0)
        config = RouterConfig(model="small", mode=mode)
        metrics = RouterMetrics()
        dispatcher = ClusterDispatcher(config, registry, metrics)
        model = ServedModel(
            name="small",
            path=small.folder,
            mode=mode.value,
            max_model_len=MAX_LEN,
            vocab_size=small.model.config.vocab_size,
            eos_token_ids=(1,),
        )
        generation = Generation(model, small.tokenizer, dispatcher)
        stack.push_async_callback(generation.close)
        yield Cluster(generation, registry, hosts, metrics)


async def ask(
    cluster: Cluster, options: SamplingOptions, disturb: Callable[[Cluster], object] | None, after: int
) -> Answer:
    """The answer to PROMPT; once `after` tokens are here, `disturb` happens."""
    request = GenerationRequest(id=f"r{after}", prompts=[PROMPT], options=options)
    run = await cluster.generation.start(request)
    answer = Answer("", [], [], 0, None)
    async with aclosing(run.chunks()) as chunks:
        async for chunk in chunks:
            answer.text += chunk.text
            answer.tokens += chunk.token_ids
            answer.logprobs += chunk.logprobs
            answer.finish, answer.stop = chunk.finish, chunk.stop
            if disturb is not None and len(answer.tokens) >= after:
                disturb, happening = None, disturb(cluster)
                await happening
    assert disturb is None
    return answer


async def undisturbed_and_disturbed(
    small: SmallModel, mode: Mode, options: SamplingOptions, how: Callable[[Cluster], object]
) -> tuple[Answer, Answer]:
    """Both answers. Begins again if the whole answer had arrived before its worker ended."""
    for _ in range(ATTEMPTS):
        async with cluster(small, mode) as served:
            expected = await ask(served, options, None, 0)
            for host in served.hosts.values():
                slow_down(host, 0.005)
            found = await ask(served, options, how, 20)
            if served.retries():
                assert served.retries() == 1
                return expected, found
    raise AssertionError(f"{ATTEMPTS} answers arrived before their worker ended")


def combinations() -> Iterator[object]:
    """All of them; half, with every pair of a mode, a way to end and a sampling, are for every change."""
    ways = [Cluster.kill_decoder, Cluster.drain_decoder]
    for (i, mode), (j, how), (k, sampling) in product(*map(enumerate, (Mode, ways, SAMPLINGS))):
        marks = pytest.mark.thorough if (i + j + k) % 2 else ()
        yield pytest.param(mode, how, sampling, marks=marks)


@pytest.mark.parametrize(("mode", "how", "sampling"), list(combinations()))
async def test_the_answer_is_the_same_token_for_token(
    small: SmallModel, mode: Mode, how: Callable[[Cluster], object], sampling: str
) -> None:
    options = SAMPLINGS[sampling]
    expected, found = await undisturbed_and_disturbed(small, mode, options, how)
    assert len(found.tokens) >= 40
    assert (found.tokens, found.text) == (expected.tokens, expected.text)
    assert (found.finish, found.stop) == (expected.finish, expected.stop)
    assert len(found.logprobs) == (len(found.tokens) if options.logprobs is not None else 0)
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (ours.rank, list(ours.top_ids)) == (theirs.rank, list(theirs.top_ids))
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)


@pytest.mark.parametrize("mode", Mode)
async def test_a_stop_string_that_spans_the_break_still_ends_the_answer(
    small: SmallModel, mode: Mode
) -> None:
    async with cluster(small, mode) as served:
        whole = (await ask(served, SAMPLINGS["greedy"], None, 0)).text
        begin = len(small.tokenizer.decode((await ask(served, SAMPLINGS["greedy"], None, 1)).tokens[:19]))
        stop = whole[begin : begin + 12]
    options = replace(SAMPLINGS["greedy"], stop=(stop,))
    expected, found = await undisturbed_and_disturbed(small, mode, options, Cluster.kill_decoder)
    assert expected.stop == found.stop == stop
    assert found.text == expected.text == whole[: whole.index(stop)]
