"""Both frontends on free ports of 127.0.0.1, over a dispatcher that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter

from router.api.access import Access, ApiKeys
from router.api.generation.generation import Generation
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.api.grpc.server import GrpcConfig, GrpcFrontend
from router.api.http.server import HttpConfig, HttpServer
from router.api.page.routes import page_routes
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.interface import OnCut, ignore_cut
from router.dispatch.token_stream import DeliveryQueue, Delta, TextEnded, TokenStream
from router.errors import RouterError
from router.request_limits import RequestLimits
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2
from rpc.tls import TlsFiles

STOP = sampling_pb2.FINISH_REASON_STOP
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


@dataclass
class Call:
    """One sequence that the dispatcher was asked for."""

    request: worker_pb2.Work
    deltas: int = 0
    """Asked for so far."""
    ended: bool = False
    """It had its last delta."""
    stopped: bool = False
    """The caller found the end of the text by itself."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """It was closed before its last delta."""

    @property
    def prompt(self) -> list[int]:
        return list(self.request.prompt)

    @property
    def sampling(self) -> sampling_pb2.SamplingParams:
        return self.request.sampling


@dataclass
class ScriptedDispatcher:
    """Answers every prompt with `script(call)`, a delta at a time."""

    script: Callable[[Call], Iterable[Delta]] = lambda call: [Delta(finish=LENGTH)]
    pause_s: float = 0.0
    """Before every delta."""
    failure: RouterError | None = None
    fail_after: int = 0
    """Deltas before `failure`."""
    hang_after: int | None = None
    """Deltas after which nothing more ever comes."""
    is_ready: bool = True
    timings: router_pb2.Timings = field(
        default_factory=lambda: router_pb2.Timings(
            queue_s=0.25, ttft_s=0.5, chunks=[router_pb2.TimingSpan(begin_s=0.25, end_s=0.5)]
        )
    )
    """Timings of sequences that come to their end."""
    calls: list[Call] = field(default_factory=list)
    released: list[tuple[str, str]] = field(default_factory=list)
    """Sessions, by tenant and key."""

    def release_session(self, tenant: str, key: str) -> None:
        self.released.append((tenant, key))

    def ready(self) -> bool:
        return self.is_ready

    def workers(self, role: worker_pb2.Role) -> int:
        return int(self.is_ready and role == worker_pb2.ROLE_DECODE)

    async def generate(
        self, request: worker_pb2.Work, stream: TokenStream, on_cut: OnCut = ignore_cut
    ) -> router_pb2.Timings:
        call = Call(request)
        self.calls.append(call)
        stream.queue = DeliveryQueue()
        try:
            return await stream.interrupt.wait(self._play(call, stream))
        except TextEnded:
            call.stopped = True
            return router_pb2.Timings(ttft_s=0.5, e2e_s=0.75)
        finally:
            stream.close()
            if not call.ended:
                call.given_up.set()

    async def _play(self, call: Call, stream: TokenStream) -> router_pb2.Timings:
        for count, delta in enumerate(self.script(call)):
            if self.failure is not None and count == self.fail_after:
                raise self.failure
            if count == self.hang_after:
                await asyncio.Event().wait()
            await asyncio.sleep(self.pause_s)
            call.ended = delta.finish != 0
            call.deltas += 1
            stream.delta = delta
            stream.changed()
            await stream.drained()
        return self.timings

    async def until_all_given_up(self) -> None:
        """Raises TimeoutError if they are not, soon."""
        async with asyncio.timeout(30.0):
            for call in self.calls:
                await call.given_up.wait()


def say(tokenizer: Tokenizer, text: str, *, eos: int | None = None) -> Callable[[Call], list[Delta]]:
    """A script: `text`, a token at a time; cut off by max_tokens, or ended by the token `eos`."""
    ids = tokenizer._encode_now(text, add_special_tokens=False)

    def script(call: Call) -> list[Delta]:
        tokens = ids if eos is None else [*ids, eos]
        tokens = tokens[: call.sampling.max_tokens]
        deltas = [Delta(token_ids=[token]) for token in tokens]
        if call.sampling.HasField("logprobs"):
            for token, delta in zip(tokens, deltas, strict=True):
                delta.logprobs = [token_logprobs(token, call.sampling.logprobs)]
        deltas[0].cached_tokens = len(call.prompt) // 2
        if call.sampling.HasField("prompt_logprobs"):
            scores = _prompt_logprobs(call.prompt[1:], call.sampling.prompt_logprobs)
            deltas[0].outputs = [worker_pb2.Output(prompt_logprobs=scores)]
        last = deltas[-1]
        last.finish = STOP if last.token_ids[0] == eos else LENGTH
        last.stop_token = eos if last.finish == STOP else None
        return deltas

    return script


def token_logprobs(token: int, count: int) -> sampling_pb2.TokenLogprobs:
    """The chosen token is the most likely; its neighbours follow, the last impossible."""
    values = [-0.5 - i for i in range(count)]
    if count > 1:
        values[-1] = float("-inf")
    return sampling_pb2.TokenLogprobs(
        logprob=-0.5, rank=1, top_ids=[token + i for i in range(count)], top_logprobs=values
    )


def _prompt_logprobs(tokens: Sequence[int], count: int) -> sampling_pb2.PromptLogprobs:
    entries = [token_logprobs(token, count) for token in tokens]
    return sampling_pb2.PromptLogprobs(
        logprobs=[entry.logprob for entry in entries],
        ranks=[entry.rank for entry in entries],
        num_top=count,
        top_ids=[top for entry in entries for top in entry.top_ids],
        top_logprobs=[value for entry in entries for value in entry.top_logprobs],
    )


@dataclass
class Frontends:
    dispatcher: ScriptedDispatcher
    models: ServedModels
    http: HttpServer
    grpc: GrpcFrontend
    scheme: str = "http"

    @property
    def generation(self) -> Generation:
        return self.models.first

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.http.port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc.port}"


async def _no_status() -> dict[str, object]:
    return {"workers": []}


@cache
def load_tokenizer(folder: Path, template: str | None = None) -> Tokenizer:
    """Kept from test to test: it has no state."""
    return Tokenizer.load(folder, vocab_size=49152, template=template)


@asynccontextmanager
async def open_frontends(
    folder: Path,
    *,
    max_model_len: int = 256,
    template: str | None = None,
    limits: RequestLimits = RequestLimits(),  # noqa: B008
    keys: ApiKeys | None = None,
    tls: TlsFiles | None = None,
    metrics_keys: ApiKeys | None = None,
    admin_keys: ApiKeys | None = None,
    adapters: ServedAdapters | None = None,
    cors_origins: Sequence[str] = (),
    keep_alive_s: float = 120.0,
) -> AsyncIterator[Frontends]:
    """Serve the tokenizer in `folder` as model "small"."""
    tokenizer = load_tokenizer(folder, template)
    dispatcher = ScriptedDispatcher(say(tokenizer, "Hello, wörld! 你好 👋🏽 and goodbye."))
    model = ServedModel(
        name="small",
        path=folder,
        mode="mixed",
        max_model_len=max_model_len,
        vocab_size=49152,
        eos_token_ids=(2,),
    )
    models = ServedModels([Generation(model, tokenizer, dispatcher, limits, adapters=adapters)])
    registry = CollectorRegistry()
    Counter("baton_example", "An example", registry=registry)
    access = Access(keys, tls, metrics_keys, admin_keys, tuple(cors_origins))
    http = HttpServer(
        models,
        HttpConfig(port=0, access=access, keep_alive_s=keep_alive_s),
        metrics=registry,
        worker_targets=lambda: ["10.0.0.1:9000", "10.0.0.2:9000"],
        endpoints=page_routes({"small": _no_status}),
    )
    grpc = GrpcFrontend(models, GrpcConfig(port=0, access=access))
    await http.start()
    await grpc.start()
    try:
        yield Frontends(dispatcher, models, http, grpc, "http" if tls is None else "https")
    finally:
        await asyncio.gather(http.stop(grace_s=1), grpc.stop(grace_s=1))
        await models.first.close()


async def code_of(call: Any) -> grpc.StatusCode | None:
    """How a gRPC call failed; None if it did not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None
