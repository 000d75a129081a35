from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from router.api.generation.text.chat_template import ChatTemplate, PromptEnd
from router.api.generation.tools import Tool
from router.errors import InvalidRequest

TAKING_TURNS = """
{%- for message in messages -%}
    {%- if loop.index0 % 2 != (message.role == 'assistant') | int %}
        {{- raise_exception('roles must take turns') }}
    {%- endif -%}
    {{ bos_token }}[{{ message.role }}] {{ message.content }}{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}
"""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_prompt_ends_where_the_assistants_answer_begins() -> None:
    template = ChatTemplate(TAKING_TURNS, {"bos_token": "<s>"})
    assert template.render([user("hi <b>")], {}) == "<s>[user] hi <b>\n[assistant]"


def test_a_conversation_that_the_template_refuses_is_the_clients_mistake() -> None:
    template = ChatTemplate(TAKING_TURNS, {})
    with pytest.raises(InvalidRequest, match="roles must take turns"):
        template.render([user("hi"), user("hi again")], {})


def test_a_message_that_breaks_the_template_is_the_clients_mistake() -> None:
    template = ChatTemplate("{{ messages[0].content + 1 }}", {})
    with pytest.raises(InvalidRequest):
        template.render([user("hi")], {})


def test_developer_is_a_new_word_for_system() -> None:
    template = ChatTemplate("{{ messages[0].role }}: {{ messages[0].content }}", {})
    assert template.render([{"role": "developer", "content": "be brief"}], {}) == "system: be brief"


def test_the_template_gets_its_own_options() -> None:
    template = ChatTemplate("{% if enable_thinking %}<think>{% endif %}", {})
    assert template.render([user("hi")], {"enable_thinking": True}) == "<think>"
    assert template.render([user("hi")], {}) == ""


CALLS = [{"function": {"name": "f", "arguments": {}}}]


def test_calls_that_the_template_would_ignore_are_refused_by_name() -> None:
    messages = [user("hi"), {"role": "assistant", "content": "", "tool_calls": CALLS}]
    using = "{% for m in messages %}{{ m.content }}{{ m['tool_calls'] }}{% endfor %}"
    assert ChatTemplate(using, {}).render(messages, {})
    insisting = (
        "{% for m in messages if m.role == 'assistant' %}{{ m.tool_calls + m.tool_calls }}{% endfor %}"
    )
    assert ChatTemplate(insisting, {}).render(messages, {})
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate("{# tool_calls #}" + TAKING_TURNS, {}).render(messages, {})
    assert (refusal.value.param, refusal.value.code) == ("messages.1.tool_calls", "unsupported_parameter")


def test_a_name_reaches_templates_that_use_it_and_changes_nothing_else() -> None:
    named = [{**user("hi"), "name": "Ada"}]
    assert (
        ChatTemplate("{{ messages[0].name }}: {{ messages[0].content }}", {}).render(named, {}) == "Ada: hi"
    )
    template = ChatTemplate(TAKING_TURNS, {})
    assert template.render(named, {}) == template.render([user("hi")], {})


TRIMMING = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"


@pytest.mark.parametrize("source", [TAKING_TURNS, TRIMMING])
@pytest.mark.parametrize("text", ["The answer is ", "", "two\nlines", "</>", "hi"])
def test_the_prompt_may_end_within_the_last_message(source: str, text: str) -> None:
    template = ChatTemplate(source, {})
    messages = [user("hi"), {"role": "assistant", "content": text}]
    prompt = template.render(messages, {}, end=PromptEnd.LAST_MESSAGE)
    closed = template.render(
        [user("hi"), {"role": "assistant", "content": "X"}], {}, end=PromptEnd.CONVERSATION
    )
    assert prompt == closed[: closed.rindex("X")] + text


def test_only_an_assistants_text_can_be_continued() -> None:
    template = ChatTemplate(TAKING_TURNS, {})
    calling = {"role": "assistant", "content": "", "tool_calls": CALLS}
    for messages in ([user("hi")], [user("hi"), calling]):
        with pytest.raises(InvalidRequest, match="continue"):
            template.render(messages, {}, end=PromptEnd.LAST_MESSAGE)
    deaf = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(InvalidRequest, match="continue"):
        deaf.render([user("hi"), {"role": "assistant", "content": "x"}], {}, end=PromptEnd.LAST_MESSAGE)


def test_calls_results_and_tools_become_text_if_the_template_does_not_support_them() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}", {})
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
    answer = {"role": "assistant", "content": "Wait.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    prompt = template.render([user("hi"), answer, result], {}, [Tool("weather", "Forecast.")])
    assert not template.takes_tools
    assert prompt.startswith("[system] You may call one or more functions")
    assert '"description": "Forecast."' in prompt
    assert prompt.endswith(
        "[user] hi\n[assistant] Wait.\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
        "[user] <tool_response>\nsunny\n</tool_response>\n"
    )


def test_a_template_that_takes_tools_gets_them_as_openai_writes_them() -> None:
    template = ChatTemplate("{% for t in tools %}{{ t.function.name }}{% endfor %}", {})
    assert template.render([user("hi")], {}, [Tool("weather"), Tool("time")]) == "weathertime"
    assert template.takes_tools


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt"])
def test_an_option_that_the_request_itself_decides_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ChatTemplate(TAKING_TURNS, {}).render([user("hi")], {name: False})


def test_a_template_cannot_reach_the_machine() -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InvalidRequest):
        template.render([user("hi")], {})


def test_the_extensions_that_models_use_are_there() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    shown = ChatTemplate(source, {}).render([user("<é>"), user("never")], {})
    assert shown == json.dumps(user("<é>"), ensure_ascii=False) + "4"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indent": 2},
        {"separators": (",", ":")},
        {"sort_keys": True},
        {"ensure_ascii": True},
        {"ensure_ascii": False, "indent": 4, "separators": (", ", ": "), "sort_keys": True},
    ],
)
def test_tojson_has_the_options_that_transformers_has(options: dict[str, Any]) -> None:
    template = "{{ messages[0] | tojson(**options) }}"
    value = {**user("<é>"), "a": {"z": [1, 2], "b": None}}
    shown = ChatTemplate(template, {}).render([value], {"options": options})
    assert shown == render_jinja_template([[value]], chat_template=template, options=options)[0][0]


def test_a_broken_template_is_found_when_the_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="cannot parse"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "{{ eos_token }}"},
        {
            "chat_template": [
                {"name": "tool_use", "template": "x"},
                {"name": "default", "template": "{{ eos_token }}"},
            ]
        },
    ],
)
def test_the_template_may_be_in_the_tokenizers_configuration(
    tmp_path: Path, config: dict[str, object]
) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**config, "eos_token": {"content": "</s>", "special": True}}))
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render([user("hi")], {}) == "</s>"


def test_the_template_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("mine")
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render([user("hi")], {}) == "mine"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None


def called(arguments: dict[str, Any]) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def test_a_template_that_appends_arguments_gets_them_as_text() -> None:
    source = (
        "{%- for message in messages -%}[{{ message.role }}]{{ message.content }}"
        "{%- for call in message.tool_calls or [] -%}"
        "{{ '<' + call.function.name + '>' + call.function.arguments + '</>' }}"
        "{%- endfor -%}{%- endfor -%}"
    )
    template = ChatTemplate(source, {})
    messages = [user("hi"), called({"text": "ü", "n": 1}), {"role": "tool", "content": "found"}]
    assert template.render(messages, {}) == '[user]hi[assistant]<find>{"text": "ü", "n": 1}</>[tool]found'


def test_the_template_of_older_processors_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "{{ bos_token }}!"}))
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render([user("hi")], {}) == "<s>!"
