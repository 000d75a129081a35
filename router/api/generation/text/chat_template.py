"""Renders a conversation as a prompt, with the model's chat template."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any, ClassVar, Final

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.api.generation.output.call_formats import taught_by
from router.api.generation.text.described_tools import with_calls_as_text, with_tools_described
from router.api.generation.text.system_messages import Message, arrangements, is_system, lost, marked
from router.api.generation.tools import Tool
from router.api.media.marks import images_after_tools, numbers_in, parts_of, with_placeholders
from router.errors import InvalidRequest


def _spoken(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Ways to say the conversation: with the arguments of calls as objects, then as text, to which templates
    such as DeepSeek-V3.1's append more; and with the images of tools in messages of the user."""
    yield from arrangements(messages)
    if any(message.get("tool_calls") for message in messages):
        yield from arrangements([_with_text_arguments(message) for message in messages])
    if any(message["role"] == "tool" and numbers_in(message["content"]) for message in messages):
        yield from arrangements(images_after_tools(messages))


def _with_text_arguments(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _to_json(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


_CUT: Final = "\ue000continue here\ue000"
"""Marks the end of the last message's content."""
_LOST: Final = {"content": "this message: it", "tool_calls": "tool_calls: they"}
_RESERVED: Final = frozenset({"add_generation_prompt", "messages", "tools"})
"""Variables that every template gets from the request itself."""
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class PromptEnd(Enum):
    """Where the prompt of a conversation ends."""

    ANSWER = auto()
    """At the start of the assistant's next message."""
    LAST_MESSAGE = auto()
    """Within the last message, an assistant's, after its content: the answer continues it."""
    CONVERSATION = auto()
    """After the last message."""


class ChatTemplate:
    """A Jinja template, run in a sandbox since it comes with the model."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ValueError if `source` is not a valid template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template: Final = environment.from_string(source)
            self.variables: Final = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ValueError(f"cannot parse the template: {error}") from error
        self._special_tokens: Final = dict(special_tokens)
        self.source: Final = source
        self.takes_tools: Final = "tools" in self.variables
        """Whether the template puts tools into the prompt; otherwise the system message describes them."""
        self._takes_calls: Final = "tool_calls" in source
        probe = f"x{secrets.token_hex(6)}x"
        self._takes_parts: Final = self._shows(probe, [{"type": "text", "text": probe}])
        self._needs_parts: Final = self._takes_parts and not self._shows(probe, probe)
        self.placeholder = ""
        """What a prompt has in the place of an image; empty: no images."""

    @classmethod
    def load(cls, folder: Path, chosen: str | None = None) -> ChatTemplate | None:
        """Load the file `chosen`, or the model's chat_template.jinja, or the template in
        tokenizer_config.json or chat_template.json.

        None if there is none of them. Raises OSError or ValueError for files that cannot be used.
        """
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text("utf-8")) if config_path.exists() else {}
        file = Path(chosen) if chosen else folder / "chat_template.jinja"
        older = folder / "chat_template.json"  # beside the processors of older models with a vision part
        if chosen or file.exists():
            source: str | None = file.read_text("utf-8")
        elif config.get("chat_template") is None and older.exists():
            source = _default_of(json.loads(older.read_text("utf-8")).get("chat_template"))
        else:
            source = _default_of(config.get("chat_template"))
        if source is None:
            return None
        return cls(source, {name: text for name in _SPECIAL_TOKENS if (text := _text_of(config.get(name)))})

    def render(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Tool] = (),
        end: PromptEnd = PromptEnd.ANSWER,
    ) -> str:
        """Render the prompt of a conversation.

        `options` are variables of the template, such as Qwen3's enable_thinking. System messages that the
        template would refuse or lose are said otherwise (`arrangements`). Raises InvalidRequest if the
        template rejects the conversation, for instance because roles do not alternate, or if no arrangement
        of it has all system messages, tool calls and results in the prompt. Costs one rendering, and one more
        with tool calls or several system messages; both again for each arrangement that is tried.
        """
        if reserved := sorted(_RESERVED & options.keys()):
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {reserved[0]}.", param="chat_template_kwargs"
            )
        if end is PromptEnd.LAST_MESSAGE:
            messages = _with_cut(messages)
        count = len(messages)
        images = sum(len(numbers_in(message.get("content"))) for message in messages)
        if not self._takes_calls:
            messages = with_calls_as_text(messages)
        if not self.takes_tools:
            messages = with_tools_described(messages, tools, taught_by(self.source, takes_tools=False))
        options = {**options, "tools": [tool.for_template() for tool in tools] or None}
        refusal: InvalidRequest | None = None
        ways = zip(_spoken(messages), _spoken(marked(messages)), strict=True)
        for arranged, probe in ways:
            try:
                prompt = self._render(arranged, options, end)
                if images and prompt.count(self.placeholder) != images:
                    raise TemplateError("it does not show each image once")  # noqa: TRY301
                ignored = self._ignored(messages, probe, options, end, prompt)
            except Exception as error:  # templates raise arbitrary errors about conversations
                message = f"The model's chat template refuses these messages: {error}"
                refusal = refusal or InvalidRequest(message, param="messages")
                continue
            if ignored is None:
                return _before_cut(prompt) if end is PromptEnd.LAST_MESSAGE else prompt
            number, field = ignored
            refusal = refusal or InvalidRequest(
                f"The model's chat template does not use {_LOST[field]} would be ignored.",
                param=f"messages.{max(0, number + count - len(messages))}.{field}",
                code="unsupported_parameter",
            )
        assert refusal is not None
        raise refusal

    def _ignored(
        self,
        messages: Sequence[Message],
        probe: Sequence[Message],
        options: Mapping[str, Any],
        end: PromptEnd,
        prompt: str,
    ) -> tuple[int, str] | None:
        """Number and field of a message that is not in `prompt`.

        `probe`: the messages with marks, arranged as they were for the prompt.
        """
        match [message for message in messages if _may_be_lost(message)]:
            case []:
                return None
            case [only] if only is messages[0] and is_system(only) and only["content"].strip() in prompt:
                return None
        return next(lost(messages, self._render(probe, options, end)), None)

    def _render(self, messages: Sequence[Message], options: Mapping[str, Any], end: PromptEnd) -> str:
        context = self._special_tokens | {"documents": None} | dict(options)
        prompt = self._template.render(
            context,
            messages=[self._with_parts(_known_role(message)) for message in messages],
            add_generation_prompt=end is PromptEnd.ANSWER,
        )
        return with_placeholders(prompt, self.placeholder)

    def _with_parts(self, message: Message) -> Message:
        """The content as a list, where the template needs one, or has one for images."""
        content = message.get("content")
        if isinstance(content, str) and (self._needs_parts or (self._takes_parts and numbers_in(content))):
            return {**message, "content": parts_of(content)}
        return message

    def _shows(self, text: str, content: Any) -> bool:
        """Whether the template shows `text` of a content, and not the content as Python writes it."""
        context = self._special_tokens | {"documents": None, "tools": None, "add_generation_prompt": True}
        try:
            prompt = self._template.render(context, messages=[{"role": "user", "content": content}])
        except Exception:  # templates raise arbitrary errors about conversations
            return False
        return text in prompt and not (isinstance(content, list) and _is_written_out(prompt, text))


def _is_written_out(prompt: str, text: str) -> bool:
    """Whether `text` is within a list as Python or JSON write it."""
    before = prompt[: prompt.index(text)][-40:]
    return "'type'" in before or '"type"' in before


def _may_be_lost(message: Message) -> bool:
    return is_system(message) or message["role"] == "tool" or "tool_calls" in message


def _with_cut(messages: Sequence[Message]) -> Sequence[Message]:
    """Mark the end of the last message's content, which templates may trim or repeat."""
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        raise InvalidRequest("Only the text of an assistant's message can be continued.", param="messages")
    return [*messages[:-1], {**last, "content": last["content"] + _CUT}]


def _before_cut(prompt: str) -> str:
    text, mark, _ = prompt.rpartition(_CUT)
    if not mark:
        raise InvalidRequest("The model's chat template cannot continue a message.", param="messages")
    return text


def _known_role(message: Message) -> Message:
    """Replace the role "developer", OpenAI's newer name for "system", which templates do not support."""
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _default_of(source: str | list[dict[str, str]] | None) -> str | None:
    """Models may have several named templates; chat uses "default"."""
    if isinstance(source, list):
        return next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return source


def _text_of(token: str | dict[str, Any] | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The tojson filter of transformers; Jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; no effect here."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
