"""Several system messages, over templates of the kinds that models have: all of them reach the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.generation.text.chat_template import ChatTemplate, PromptEnd
from router.api.generation.tools import Tool
from router.errors import InvalidRequest

TURN = "<{{ m.role }}>{{ m.content | trim }}{{ m.tool_calls | tojson if m.tool_calls }}</>"
EACH = f"{{%- for m in messages -%}}{TURN}{{%- endfor -%}}"
ALTERNATING = """
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif -%}
<{{ m.role }}>{{ prefix if loop.first }}{{ m.content }}</>
{%- endfor -%}"""
FIRST = """
{%- set prefix = '' -%}
{%- if messages[0].role == 'system' -%}
{%- set prefix = messages[0].content + ' ' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}"""

TEMPLATES = {
    "in its place": EACH,
    # gpt-oss: the first one is developer instructions, others are of no known role.
    "first only": FIRST + "{{ prefix }}{% for m in rest if m.role != 'system' %}" + TURN + "{% endfor %}",
    # SmolLM3, with tools: the system message is that of the tools.
    "first without tools": FIRST
    + "{{ tools | tojson if tools else prefix }}{% for m in rest if m.role != 'system' %}"
    + TURN
    + "{% endfor %}",
    # DeepSeek-R1
    "last only": """
{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content %}{% endfor -%}
{{ ns.system }}{% for m in messages if m.role != 'system' %}"""
    + TURN
    + "{% endfor %}",
    # Qwen3.5
    "refused later": """
{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first -%}
{{ raise_exception('System message must be at the beginning.') }}
{%- endif -%}"""
    + TURN
    + "{%- endfor -%}",
    # Gemma 3, Mistral: part of the first user's message, roles alternate.
    "with the user's": FIRST + ALTERNATING,
    # Gemma 2
    "refused": """
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- set rest = messages -%}"""
    + ALTERNATING,
    # RWKV
    "ignored": "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}",
}
templates = pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of user and assistant, with system messages anywhere; each says something else."""
    turns = draw(st.integers(1, 4))
    messages: list[dict[str, Any]] = []
    for turn in range(2 * turns - 1):
        for _ in range(draw(st.integers(0, 2))):
            role = draw(st.sampled_from(["system", "developer"]))
            messages.append(said(role, f"S{len(messages)}."))
        messages.append(said("assistant" if turn % 2 else "user", f"T{len(messages)}."))
    if draw(st.booleans()):
        messages.append(said("system", f"S{len(messages)}."))
    return messages


@templates
@given(messages=conversations(), tools=st.sampled_from([(), (Tool("f"),)]))
def test_every_message_reaches_the_prompt_once(
    source: str, messages: list[dict[str, Any]], tools: tuple[Tool, ...]
) -> None:
    prompt = ChatTemplate(source, {}).render(messages, {}, tools)
    for message in messages:
        assert prompt.count(message["content"]) == 1
    turns = [prompt.index(message["content"]) for message in messages if message["content"].startswith("T")]
    assert turns == sorted(turns)


@templates
def test_leading_system_messages_become_one(source: str) -> None:
    messages = [said("system", "one"), said("developer", "two"), said("user", "hi")]
    prompt = ChatTemplate(source, {}).render(messages, {})
    if source == EACH:
        assert prompt == "<system>one</><system>two</><user>hi</>"
    else:
        assert "one\n\ntwo" in prompt


def test_a_later_system_message_is_said_by_the_user() -> None:
    messages = [said("system", "S"), said("user", "a"), said("assistant", "b"), said("system", "c")]
    for name in ("first only", "last only", "refused later", "with the user's"):
        template = ChatTemplate(TEMPLATES[name], {})
        assert template.render(messages, {}).endswith("<assistant>b</><user>c</>")
        assert template.render([*messages, said("user", "d")], {}).endswith("<assistant>b</><user>c\n\nd</>")


def test_a_system_message_that_was_rendered_alone_is_not_rendered_otherwise() -> None:
    messages = [said("system", "S"), said("user", "hi")]
    assert ChatTemplate(TEMPLATES["refused later"], {}).render(messages, {}) == "<system>S</><user>hi</>"


def test_a_message_that_no_arrangement_saves_is_refused_by_its_place() -> None:
    template = ChatTemplate("{{ messages[-1].content }}{# tools #}", {})
    messages = [said("system", "S"), said("user", "a"), said("assistant", "b"), said("user", "c")]
    with pytest.raises(InvalidRequest, match="does not use this message") as refusal:
        template.render(messages, {})
    assert (refusal.value.param, refusal.value.code) == ("messages.0.content", "unsupported_parameter")


def test_the_result_of_a_call_is_not_lost() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    calling = said("assistant", "") | {"tool_calls": [call, call]}
    messages = [said("user", "hi"), calling, said("tool", "sunny") | {"tool_call_id": "1"}]
    assert "sunny" in ChatTemplate(EACH, {}).render(messages, {})
    first_call = "{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}"
    for source, param in (
        ("{% for m in messages if m.role != 'tool' %}" + TURN + "{% endfor %}", "messages.2.content"),
        (first_call + "{% endfor %}", "messages.1.tool_calls"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            ChatTemplate(source, {}).render(messages, {})
        assert refusal.value.param == param


def test_a_continued_answer_may_follow_several_system_messages() -> None:
    messages = [said("system", "one"), said("system", "two"), said("user", "hi"), said("assistant", "The ")]
    template = ChatTemplate(TEMPLATES["refused later"], {})
    prompt = template.render(messages, {}, end=PromptEnd.LAST_MESSAGE)
    assert prompt == "<system>one\n\ntwo</><user>hi</><assistant>The "
