"""Requests that are expensive to check, to parse or to answer: each is at most 4 MB."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.router_pb2 import (
    Chat,
    ChatMessage,
    DetokenizeRequest,
    GenerateRequest,
    TokenIds,
    TokenizeRequest,
    Tool,
)

_BYTES = 4_000_000
CHAT, TEXT, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Hostile:
    name: str
    surface: str
    """A path, or a method of gRPC."""
    body: Callable[[], bytes | Message]
    at_once: int = 1

    def content(self) -> bytes:
        body = self.body()
        return body if isinstance(body, bytes) else body.SerializeToString()


_DIVISORS = '{"multipleOf":7919},{"multipleOf":7907},{"multipleOf":9973}'
SCHEMA = f'{{"allOf":[{_DIVISORS}]}}'
"""71 bytes."""
_SIBLINGS = '{"type":"integer","multipleOf":7919,"allOf":[{"multipleOf":7907}]}'
_ALTERNATIVES = '{"allOf":[{"anyOf":[{"multipleOf":7919}]},{"anyOf":[{"multipleOf":7907}]}]}'
_PROPERTIES = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}
_UNIQUE = {"type": "array", "uniqueItems": True, "items": {"enum": list(range(8))}}
_ASK = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}


def _json(path: str, **fields: Any) -> bytes:
    base: dict[str, Any] = {
        CHAT: _ASK,
        ANTHROPIC: _ASK | {"model": "small"},
        TEXT: {"prompt": "a", "max_tokens": 5},
        RESPONSES: {"input": "a", "max_output_tokens": 5, "store": False},
    }.get(path, {})
    return json.dumps(base | fields, separators=(",", ":")).encode()


def _repeated(head: str, item: str, tail: str = "]}") -> bytes:
    count = (_BYTES - len(head)) // (len(item) + 1)
    return (head + ",".join([item] * count) + tail).encode()


def _keys(head: str, value: str, size: int = _BYTES) -> bytes:
    keys = (f'"k{i}":{value}' for i in range(size // 12))
    return (head + ",".join(keys) + "}}").encode()


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def _tools(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def grammars() -> Iterator[Hostile]:
    explosion = json.loads(SCHEMA)
    tool = {"type": "object", "properties": {"a": explosion}}
    for name, schema in [
        ("three divisors", explosion),
        ("a divisor beside allOf", json.loads(_SIBLINGS)),
        ("divisors under anyOf", json.loads(_ALTERNATIVES)),
        ("divisors 997 and 991", {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}),
        ("three divisors, described", explosion | {"description": "a" * 300}),
        ("3,000 properties", _PROPERTIES),
        ("unique items", _UNIQUE),
    ]:
        yield Hostile(
            f"schema: {name}", CHAT, lambda schema=schema: _json(CHAT, response_format=_format(schema))
        )
    yield Hostile(
        "schema: of a forced call", CHAT, lambda: _json(CHAT, tools=_tools(tool), tool_choice="required")
    )
    yield Hostile(
        "schema: three divisors",
        RESPONSES,
        lambda: _json(RESPONSES, text={"format": {"type": "json_schema", "name": "a", "schema": explosion}}),
    )
    yield Hostile(
        "schema: three divisors",
        ANTHROPIC,
        lambda: _json(ANTHROPIC, output_format={"type": "json_schema", "schema": explosion}),
    )
    yield Hostile("schema: within EBNF", TEXT, lambda: _json(TEXT, ebnf=f"start: %json {SCHEMA}"))
    for regex in ("(a{1000}){1000}", "((a{100}){100}){100}", "(a{65535}){65535}", "a{1000000}"):
        yield Hostile(f"regex: {regex}", TEXT, lambda regex=regex: _json(TEXT, regex=regex))
    yield Hostile(
        "schema: three divisors",
        "Generate",
        lambda: GenerateRequest(
            text="a",
            sampling=sampling_pb2.SamplingParams(
                max_tokens=5, grammar=sampling_pb2.Grammar(kind="GRAMMAR_KIND_JSON_SCHEMA", text=SCHEMA)
            ),
        ),
    )


def bodies() -> Iterator[Hostile]:
    for item in ("0", "{}"):
        yield Hostile(f"wrong items: {item}", RESPONSES, lambda item=item: _repeated('{"input":[', item))
        yield Hostile(f"wrong items: {item}", ANTHROPIC, lambda item=item: _repeated('{"messages":[', item))
        yield Hostile(f"wrong items: {item}", CHAT, lambda item=item: _repeated('{"messages":[', item))
    yield Hostile("wrong items, three at once", CHAT, lambda: _repeated('{"messages":[', "0"), at_once=3)
    yield Hostile("wrong stop strings", CHAT, lambda: _repeated('{"messages":[],"stop":[', "0"))
    yield Hostile("wrong biases", TEXT, lambda: _keys('{"prompt":"a","logit_bias":{', "1"))
    yield Hostile("wrong metadata", RESPONSES, lambda: _keys('{"input":"a","metadata":{', "1"))
    yield Hostile("unknown fields", CHAT, lambda: _keys('{"messages":[],"a":{},', "0")[:-1])
    yield Hostile("deep nesting", CHAT, lambda: b'{"messages":' + b"[" * _BYTES)
    yield Hostile("short messages", CHAT, lambda: _repeated('{"messages":[', '{"role":"user","content":"a"}'))
    yield Hostile(
        "content parts",
        CHAT,
        lambda: _repeated('{"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}"),
    )
    yield Hostile("token ids", TEXT, lambda: _repeated('{"max_tokens":5,"prompt":[', "5"))
    yield Hostile("ids to detokenize", "/detokenize", lambda: _repeated('{"tokens":[', "5,5,5"))
    yield Hostile("text", TEXT, lambda: _json(TEXT, prompt="a " * (_BYTES // 2)))
    yield Hostile("text to tokenize", "/tokenize", lambda: _json("/tokenize", prompt="ä%" * (_BYTES // 8)))
    yield Hostile("tools", CHAT, lambda: _json(CHAT, tools=_tools(_large_schema())))
    yield Hostile(
        "tools, forced", CHAT, lambda: _json(CHAT, tools=_tools(_large_schema()), tool_choice="required")
    )
    yield Hostile(
        "tools to tokenize",
        "/tokenize",
        lambda: _json("/tokenize", **_ASK_ONLY, tools=_tools(_large_schema())),
    )
    yield Hostile(
        "template options", CHAT, lambda: _json(CHAT, chat_template_kwargs={"a": [[]] * (_BYTES // 3)})
    )


_ASK_ONLY = {"messages": _ASK["messages"]}


def within_the_limits() -> Iterator[Hostile]:
    """As many parts as a body may have, or nearly."""
    for path, head in ((CHAT, '{"messages":['), (ANTHROPIC, '{"messages":['), (RESPONSES, '{"input":[')):
        yield Hostile("790,000 wrong items", path, lambda head=head: _few(head, "0", 790_000))
        yield Hostile("85,000 wrong items", path, lambda head=head: _few(head, "{}", 85_000))
    message = '{"role":"user","content":"a"}'
    yield Hostile("19,000 messages", CHAT, lambda: _few('{"max_tokens":5,"messages":[', message, 19_000))
    yield Hostile(
        "19,000 messages",
        ANTHROPIC,
        lambda: _few('{"model":"small","max_tokens":5,"messages":[', message, 19_000),
    )
    yield Hostile("19,000 messages", RESPONSES, lambda: _few('{"input":[', message, 19_000))
    yield Hostile("19,000 messages", "Generate", lambda: GenerateRequest(chat=_chat(19_000)))
    yield Hostile("85,000 biases", TEXT, lambda: _keys('{"prompt":"a","logit_bias":{', "1", 85_000 * 12))
    yield Hostile(
        "85,000 unknown fields", CHAT, lambda: _keys('{"messages":[],"a":{},', "0", 85_000 * 12)[:-1]
    )
    yield Hostile("85,000 lists", CHAT, lambda: _json(CHAT, chat_template_kwargs={"a": [[]] * 85_000}))


def _few(head: str, item: str, count: int) -> bytes:
    return (head + ",".join([item] * count) + "]}").encode()


def _large_schema() -> Any:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(_BYTES // 32)}}


def answers() -> Iterator[Hostile]:
    yield Hostile(
        "16 answers with alternatives",
        CHAT,
        lambda: _json(CHAT, n=16, max_tokens=500, logprobs=True, top_logprobs=20),
    )
    yield Hostile(
        "64 answers with alternatives", TEXT, lambda: _json(TEXT, n=64, max_tokens=500, logprobs=20)
    )
    yield Hostile(
        "an answer with alternatives",
        RESPONSES,
        lambda: _json(RESPONSES, max_output_tokens=1000, top_logprobs=20),
    )


def messages() -> Iterator[Hostile]:
    """Hostile messages of gRPC."""
    yield Hostile("200,000 messages", "Generate", lambda: GenerateRequest(chat=_chat(200_000)))
    yield Hostile("200,000 messages", "Tokenize", lambda: TokenizeRequest(chat=_chat(200_000)))
    yield Hostile("90,000 messages", "Generate", lambda: GenerateRequest(chat=_chat(90_000)))
    yield Hostile(
        "tools",
        "Generate",
        lambda: GenerateRequest(
            chat=Chat(messages=_chat(1).messages, tools=[Tool(name=f"t{i}") for i in range(300_000)])
        ),
    )
    yield Hostile(
        "stop strings",
        "Generate",
        lambda: GenerateRequest(text="a", sampling=sampling_pb2.SamplingParams(stop=["a"] * 1_000_000)),
    )
    yield Hostile(
        "biases",
        "Generate",
        lambda: GenerateRequest(
            text="a", sampling=sampling_pb2.SamplingParams(logit_bias=dict.fromkeys(range(300000), 1.0))
        ),
    )
    yield Hostile("token ids", "Generate", lambda: GenerateRequest(token_ids=TokenIds(ids=[5] * 3_000_000)))
    yield Hostile("ids to detokenize", "Detokenize", lambda: DetokenizeRequest(ids=[5] * 500_000))
    yield Hostile(
        "template options",
        "Generate",
        lambda: GenerateRequest(
            chat=Chat(messages=_chat(1).messages, template_options='{"a":[' + "[]," * 1_300_000 + "1]}")
        ),
    )


def _chat(count: int) -> Chat:
    return Chat(messages=[ChatMessage(role="user", content="a") for _ in range(count)])


def corpus() -> list[Hostile]:
    return [*grammars(), *bodies(), *within_the_limits(), *answers(), *messages()]
