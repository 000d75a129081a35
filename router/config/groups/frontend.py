"""Settings of the HTTP and gRPC APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from router.config.choices import ReasoningParser, ToolCallParser
from router.config.option import Option

__all__ = ["FrontendSettings"]

_GROUP: Final = "HTTP and gRPC APIs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    tool_call_parser: Annotated[
        ToolCallParser,
        Option(_GROUP, "format of the model's tool calls; auto: detected from its chat template"),
    ] = ToolCallParser.AUTO
    reasoning_parser: Annotated[
        ReasoningParser,
        Option(_GROUP, "how reasoning is separated from the answer; auto: detected from the chat template"),
    ] = ReasoningParser.AUTO
    host: Annotated[str, Option(_GROUP, "address to listen on; 0.0.0.0 for every interface", "HOST")] = (
        "127.0.0.1"
    )
    http_port: Annotated[
        int,
        Option(
            _GROUP, "port of the OpenAI-compatible HTTP API; 0 picks a free one", "PORT", aliases=("--port",)
        ),
    ] = 30000
    grpc_port: Annotated[
        int, Option(_GROUP, "port of the gRPC API (baton.v1.Router); 0 picks a free one", "PORT")
    ] = 50051

    frontends: Annotated[
        int,
        Option(
            _GROUP,
            "router processes that share the ports and the workers; each can use one core",
            "N",
            least=1,
        ),
    ] = 1
    http_keep_alive: Annotated[
        float,
        Option(
            _GROUP,
            "close HTTP connections idle for this long; set it above the idle timeout of a proxy in front",
            "SECONDS",
            above=0,
        ),
    ] = 120.0
