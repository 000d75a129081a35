"""Settings of the HTTP and gRPC APIs."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.choices import ReasoningParser, ToolCallParser
from router.config.option import Heading

__all__ = ["FrontendSettings"]

_group = Heading("HTTP and gRPC APIs")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    tool_call_parser: ToolCallParser = _group(
        ToolCallParser.AUTO, "format of the model's tool calls; auto: detected from its chat template"
    )
    reasoning_parser: ReasoningParser = _group(
        ReasoningParser.AUTO,
        "how reasoning is separated from the answer; auto: detected from the chat template",
    )
    host: str = _group("127.0.0.1", "address to listen on; 0.0.0.0 for every interface", "HOST")
    http_port: int = _group(
        30000, "port of the OpenAI-compatible HTTP API; 0 picks a free one", "PORT", aliases=("--port",)
    )
    grpc_port: int = _group(50051, "port of the gRPC API (baton.v1.Router); 0 picks a free one", "PORT")

    frontends: int = _group(
        1, "router processes that share the ports and the workers; each can use one core", "N", least=1
    )
    http_keep_alive: float = _group(
        120.0,
        "close HTTP connections idle for this long; set it above the idle timeout of a proxy in front",
        "SECONDS",
        above=0,
    )
