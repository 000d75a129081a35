"""One streamed request to an OpenAI server, with the times of its events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import httpx
import orjson

from benchmarks.lib.load.workload import Work

_DATA: Final = "data:"
_DONE: Final = "[DONE]"


class Api(Enum):
    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Api.COMPLETIONS else "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests, and what to add to each."""

    base_url: str
    model: str
    api: Api = Api.COMPLETIONS
    api_key: str = "none"
    timeout_s: float = 600.0
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request body: `{"ignore_eos": True, "temperature": 0}`."""


def only_model(base_url: str, api_key: str = "none") -> str:
    """The first model that the server lists. Raises httpx.HTTPError."""
    answer = httpx.get(
        f"{base_url}/v1/models", headers={"Authorization": f"Bearer {api_key}"}, timeout=10, trust_env=False
    ).raise_for_status()
    return str(answer.json()["data"][0]["id"])


@dataclass(slots=True)
class Record:
    """What happened to one request. Times are seconds on the client's monotonic clock."""

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """When each piece of text came; a piece is one token, or several that came together."""
    pieces: list[str] = field(default_factory=list)
    """The text of each."""
    token_ids: list[int] = field(default_factory=list)
    """Tokens of the answer, if the request asks for them (`return_token_ids`)."""
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Cached tokens of the prompt, if the server reports them."""
    output_tokens: int = 0
    """Counted by the server where it reports usage, else the number of pieces."""
    error: str | None = None
    timings: dict[str, Any] | None = None
    """Baton's account of the time to first token, when asked for."""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def e2e(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds a token after the first; 0 for an answer of one token."""
        later_tokens = self.output_tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / later_tokens if later_tokens > 0 else 0.0

    @property
    def itls(self) -> Iterator[float]:
        """Seconds between one piece of text and the next."""
        return (after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False))


def open_client(target: Target) -> httpx.AsyncClient:
    """A client without a limit on connections: the server under test does the queueing, not this side."""
    return httpx.AsyncClient(
        base_url=target.base_url,
        headers={"Authorization": f"Bearer {target.api_key}", "Content-Type": "application/json"},
        timeout=target.timeout_s,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    )


async def send(client: httpx.AsyncClient, target: Target, work: Work, record: Record | None = None) -> Record:
    """Send one request and wait for its end. What goes wrong is written into the record, not raised.

    To observe the answer while it grows, pass a record.
    """
    record = record or Record()
    record.sent = time.monotonic()
    try:
        async with client.stream("POST", target.api.path, content=_body(target, work)) as response:
            if response.status_code != httpx.codes.OK:
                record.error = (
                    f"HTTP {response.status_code}: {(await response.aread())[:200].decode(errors='replace')}"
                )
                return record
            async for event in _events(response):
                _take(event, record)
    except (httpx.HTTPError, orjson.JSONDecodeError) as error:
        record.error = f"{type(error).__name__}: {error}"
    finally:
        record.ended = time.monotonic()
    if record.error is None and not record.arrivals:
        record.error = "the answer was empty"
    if not record.output_tokens:
        record.output_tokens = len(record.arrivals)
    return record


def _body(target: Target, work: Work) -> bytes:
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": work.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    if target.api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": work.content}]
    else:
        body["prompt"] = work.prompt
    return orjson.dumps(body)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        yield orjson.loads(data)


def _take(event: dict[str, Any], record: Record) -> None:
    if "error" in event:
        record.error = str(event["error"])
        return
    for choice in event.get("choices", ()):
        piece = choice.get("text") or choice.get("delta", {}).get("content")
        if token_ids := choice.get("token_ids"):
            record.token_ids += token_ids
        if piece or token_ids:
            record.arrivals.append(time.monotonic())
            record.pieces.append(piece or "")
    if usage := event.get("usage"):
        record.prompt_tokens = usage["prompt_tokens"]
        record.output_tokens = usage["completion_tokens"]
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if timings := event.get("timings"):
        record.timings = timings
