"""Prompts and conversations of gRPC requests."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import ValidationError

from router.api.generation.generation_request import Chat, Prompt
from router.api.generation.params.validation import refusal_of, require_few_parts
from router.api.generation.tools import Tool, ToolUse
from router.api.openai.messages import (
    AssistantMessage,
    MessageBody,
    ToolMessage,
    for_template,
    text_message,
    tool_call,
)
from router.api.openai.tools import MAX_TOOLS, FunctionBody, choose
from router.errors import InvalidRequest
from rpc.baton.v1 import router_pb2

_MODES: Final = {
    router_pb2.TOOL_CHOICE_AUTO: "auto",
    router_pb2.TOOL_CHOICE_NONE: "none",
    router_pb2.TOOL_CHOICE_REQUIRED: "required",
}


def prompt_of(request: router_pb2.GenerateRequest) -> Prompt:
    """Raises InvalidRequest."""
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            return list(request.token_ids.ids)
        case "chat":
            return chat_of(request.chat)
        case _:
            raise InvalidRequest("The request has no prompt.", param="prompt")


def chat_of(chat: router_pb2.Chat) -> Chat:
    """Raises InvalidRequest."""
    messages = [_message(message) for message in chat.messages]
    try:
        known = for_template(messages)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=f"chat.{error.param}", code=error.code) from None
    return Chat(known, _object(chat.template_options, "chat.template_options"), _tool_use(chat))


def _tool_use(chat: router_pb2.Chat) -> ToolUse:
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidRequest(f"There are more than {MAX_TOOLS} tools.", param="chat.tools")
    tools: list[Tool] = []
    for number, tool in enumerate(chat.tools):
        param = f"chat.tools.{number}"
        function: dict[str, Any] = {"name": tool.name, "description": tool.description or None}
        if tool.parameters:
            function["parameters"] = _object(tool.parameters, f"{param}.parameters")
        try:
            tools.append(FunctionBody.model_validate(function).tool)
        except ValidationError as error:
            refusal = refusal_of(error, function)
            raise InvalidRequest(refusal.message, param=param, code=refusal.code) from None
    mode = _MODES.get(chat.tool_choice)
    if mode is None:
        raise InvalidRequest(f"There is no tool choice {chat.tool_choice}.", param="chat.tool_choice")
    return choose(tools, chat.tool_name or None, mode, not chat.single_tool_call)


def _object(text: str, param: str) -> dict[str, Any]:
    require_few_parts(text.encode(), param, param)
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be a JSON object.", param=param)
    return value


def _message(message: router_pb2.ChatMessage) -> MessageBody:
    content = message.content
    if message.role != "assistant" and (message.tool_calls or message.reasoning):
        raise InvalidRequest(
            "Only an assistant has tool_calls and reasoning.", param="chat.messages.tool_calls"
        )
    if message.role != "tool" and message.tool_call_id:
        raise InvalidRequest("Only a tool has a tool_call_id.", param="chat.messages.tool_call_id")
    match message.role:
        case "system" | "developer" | "user":
            return text_message(message.role, content)
        case "tool":
            return ToolMessage(role="tool", content=content, tool_call_id=message.tool_call_id)
        case "assistant":
            calls = [tool_call(call.id, call.name, call.arguments) for call in message.tool_calls]
            return AssistantMessage(
                role="assistant",
                content=content,
                tool_calls=calls or None,
                reasoning_content=message.reasoning or None,
            )
    raise InvalidRequest(
        f"A message's role must be assistant, developer, system, tool or user, not {message.role[:100]!r}.",
        param="chat.messages.role",
    )
