"""`cache_control` at tools and blocks: how much of the prompt a mark retains, for several chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.anthropic.requests import MessagesBody
from router.api.anthropic.writer import input_usage
from router.api.generation.generation_request import Chat
from router.api.generation.text.breakpoints import block_end, common_length
from router.api.generation.text.chat_template import ChatTemplate
from router.errors import InvalidRequest

CHATML = """\
{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
TRIMMING = """\
{{ bos_token }}{% for m in messages %}
{{ '<h>' + m.role + '</h>' + m.content | trim + '<eot>' }}
{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<h>assistant</h>{% endif %}
"""
TOOLS_AFTER_SYSTEM = """\
{{ '<sys>' + (messages[0].content if messages[0].role == 'system' else 'default') }}
{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}</sys>
{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}
{% for call in m.tool_calls or [] %}<call>{{ call.function.arguments }}</call>{% endfor %}
{% endfor %}[assistant]
"""
TOOLS_BEFORE_LAST = """\
{% for m in messages %}
{% if loop.last and tools %}[TOOLS]{% for t in tools %}{{ t.function.name }}: {{ t.function.description }}
{% endfor %}[/TOOLS]{% endif %}
{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]
{% else %}{{ m.content }}{{ m.tool_calls or '' }}</s>{% endif %}
{% endfor %}
"""
PARAMETERS_BY_NAME = """\
{% for t in tools or [] %}fn {{ t.function.name }}(
{% for name in t.function.parameters.properties %}{{ name }},{% endfor %})
{% endfor %}
{% for m in messages %}{{ m.role }} {{ m.content | tojson }}{{ m.tool_calls | default('') }};{% endfor %}
"""
TEMPLATES = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "tools after system": TOOLS_AFTER_SYSTEM,
    "tools before last": TOOLS_BEFORE_LAST,
    "parameters by name": PARAMETERS_BY_NAME,
}
every_template = pytest.mark.parametrize("source", TEMPLATES.values(), ids=list(TEMPLATES))
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"of_{name}": {"type": "string"}}}
    return {"name": name, "description": f"does {name}", "input_schema": schema, **more}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def body(**fields: Any) -> MessagesBody:
    given_fields = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]} | fields
    return MessagesBody.model_validate(given_fields)


def rendered(template: ChatTemplate, chat: Chat) -> str:
    return template.render(chat.messages, chat.template_options, chat.tool_use.offered, chat.end)


def prefixes(source: str, request: MessagesBody) -> tuple[str, list[str]]:
    """The prompt, and its beginnings up to the marks."""
    template = ChatTemplate(source, {"bos_token": "<s>"})
    [chat] = request.to_request("r").prompts
    assert isinstance(chat, Chat)
    prompt = rendered(template, chat)
    ends = [block_end(prompt, [rendered(template, c) for c in point.altered()]) for point in chat.breakpoints]
    return prompt, [prompt[:end] for end in ends]


def conversation(changed: int = -1) -> dict[str, Any]:
    """Marks at the system, at a block within a message, at a call and at a result. `changed`: the mark after
    which the text is different."""
    document, now, answer, then = (
        words + (" instead" if changed == number else "")
        for number, words in enumerate(["Some document.", "Now", "fine.", "And then?"])
    )
    call = {"type": "tool_use", "id": "t1", "name": "first", "input": {"of_first": "x"}, **MARK}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("It is"), text(answer)], **MARK}
    return {
        "tools": [tool("first"), tool("second")],
        "system": [text("Be brief."), text("Be kind.", **HOUR)],
        "messages": [
            {"role": "user", "content": [text(document), text("What is up?", **MARK), text(now)]},
            {"role": "assistant", "content": [text("Let me see."), call]},
            {"role": "user", "content": [result, text(then)]},
        ],
    }


@every_template
def test_a_mark_retains_the_prompt_up_to_the_end_of_its_block(source: str) -> None:
    _, (system, block, call, result) = prefixes(source, body(**conversation()))
    assert system.endswith("Be kind.")
    assert block.endswith("What is up?")
    assert call.startswith(block)
    assert call.replace("\\", "").replace("'", '"').endswith('"of_first": "x"')
    assert result.endswith("fine.")


@every_template
@pytest.mark.parametrize("place", range(4))
def test_what_follows_a_mark_does_not_change_what_it_retains(source: str, place: int) -> None:
    prompt, before = prefixes(source, body(**conversation()))
    other, after = prefixes(source, body(**conversation(place)))
    assert prompt != other
    assert before[place] == after[place]


def test_whitespace_that_a_template_drops_is_not_retained() -> None:
    request = body(messages=[{"role": "user", "content": [text("What is up?  ", **MARK)]}])
    _, [retained] = prefixes(TRIMMING, request)
    assert retained.endswith("What is up?")


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (CHATML, '"of_second": {"type": "string"}}'),
        (TOOLS_AFTER_SYSTEM, '"of_second": {"type": "string"}}'),
        (TOOLS_BEFORE_LAST, "does second"),
        (PARAMETERS_BY_NAME, "of_second,"),
    ],
)
def test_a_mark_at_a_tool_retains_what_the_template_says_of_it(source: str, end: str) -> None:
    tools = [tool("first"), tool("second", **MARK), tool("third")]
    prompt, [retained] = prefixes(source, body(tools=tools, system="Be brief."))
    assert retained.endswith(end)
    assert "third" not in retained
    assert "third" in prompt


def test_a_mark_at_something_that_the_prompt_does_not_have_retains_nothing() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | length }}"
    _, retained = prefixes(template, body(tools=[tool("first", **MARK)], tool_choice={"type": "auto"}))
    assert retained == [""]


def test_a_request_has_four_marks_at_most_and_its_own_is_one_of_them() -> None:
    blocks = [text("a", **MARK) for _ in range(4)]
    request = body(messages=[{"role": "user", "content": blocks}])
    assert len(prefixes(CHATML, request)[1]) == 4
    with pytest.raises(InvalidRequest, match="number 5") as refusal:
        body(messages=[{"role": "user", "content": [*blocks, text("a", **MARK)]}]).to_request("r")
    assert refusal.value.param == "messages.0.content.4.cache_control"
    with pytest.raises(InvalidRequest, match="number 5") as refusal:
        body(messages=[{"role": "user", "content": blocks}], **MARK).to_request("r")
    assert refusal.value.param == "cache_control"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("a", **MARK)], "system": [text("b", **HOUR)]}, "system.0.cache_control.ttl"),
        (
            {"system": [text("b", **MARK)], "messages": [{"role": "user", "content": [text("c", **HOUR)]}]},
            "messages.0.content.0.cache_control.ttl",
        ),
        ({"system": [text("b", **MARK)], **HOUR}, "cache_control.ttl"),
    ],
)
def test_a_longer_time_comes_before_a_shorter_one(fields: Mapping[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="longer ones come first") as refusal:
        body(**fields).to_request("r")
    assert refusal.value.param == param


def test_usage_counts_computed_tokens_before_the_last_mark_by_their_time() -> None:
    prefixes = [(40, 3600.0), (70, 300.0)]
    usage = input_usage(100, 0, prefixes)
    assert (usage["input_tokens"], usage["cache_creation_input_tokens"]) == (30, 70)
    assert list(usage["cache_creation"].values()) == [30, 40]
    usage = input_usage(100, 48, prefixes)
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (30, 48)
    assert list(usage["cache_creation"].values()) == [22, 0]
    usage = input_usage(100, 96, prefixes)
    assert (usage["input_tokens"], usage["cache_creation_input_tokens"]) == (4, 0)
    assert input_usage(100, 16, [])["input_tokens"] == 84


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 9000))
def test_the_common_beginning_of_two_texts(one: str, other: str, length: int) -> None:
    begin = "ab" * length
    expected = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert common_length(begin + one, begin + other) == len(begin) + expected
