"""Tools of chat templates that do not show them."""

from __future__ import annotations

import json

import pytest

from router.api.generation.forced.forced_calls import forced_calls
from router.api.generation.output.formats import OutputFormats, ToolFormat
from router.api.generation.text.chat_template import ChatTemplate
from router.api.generation.tools import Tool, ToolChoice, ToolUse

SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
CALLS = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    "%s<｜tool▁sep｜>{{ call.function.name }}{% endfor %}{% endfor %}"
)
V31 = SYSTEM + CALLS.replace("%s", "")
V3 = SYSTEM + CALLS.replace("%s", "function") + "\n```json\n"
TOOLS = (Tool("weather", "Forecast.", {"type": "object", "properties": {"city": {"type": "string"}}}),)


@pytest.mark.parametrize(
    ("source", "format", "shown"),
    [
        (V3, ToolFormat.DEEPSEEK_V3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME\n```json\n{"),
        (
            V31,
            ToolFormat.DEEPSEEK_V31,
            "tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>",
        ),
        (SYSTEM, ToolFormat.HERMES, '<tool_call>\n{"name": <function-name>'),
    ],
)
def test_tools_are_described_in_the_format_of_the_templates_calls(
    source: str, format: ToolFormat, shown: str
) -> None:
    template = ChatTemplate(source, {})
    formats = OutputFormats.of_template(source, takes_tools=template.takes_tools)
    assert (template.takes_tools, formats.tools) == (False, format)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    prompt = template.render(messages, {}, TOOLS)
    assert prompt.startswith("Be brief.\n\n")
    assert shown in prompt
    assert "weather" in prompt
    assert '"city": {"type": "string"}' in prompt
    assert ("<tool_call>" in prompt) == (format is ToolFormat.HERMES)
    assert template.render(messages, {}).startswith("Be brief.")
    forced = forced_calls(formats, ToolUse(TOOLS, ToolChoice.REQUIRED), prompt, {})
    assert (json.dumps("<｜tool▁sep｜>")[1:-1] in forced.grammar.text) == (format is not ToolFormat.HERMES)
