"""Which parser a model gets, from excerpts of chat templates as their publishers wrote them."""

from __future__ import annotations

import pytest

from router.api.generation.output.call_ids import with_short_ids
from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from router.api.generation.output.parts import Arguments, Call, Content, ReasoningPart
from router.api.generation.tools import Tool, ToolChoice, ToolUse, forced_schema
from router.config.choices import ReasoningParserChoice, ToolCallParser
from router.errors import InvalidRequest
from tests.unit.engine.grammar.test_json_schema import says

QWEN = (
    "return a json object with function name and arguments within <tool_call></tool_call> XML tags:"
    '\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>'
)
QWEN_THINKING = QWEN + "{%- if '</think>' in content %}"
QWEN_CODER = "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>"
LLAMA_31 = (
    """{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- "<|python_tag|>" }}ipython"""
)
LLAMA_32 = """{{- '"parameters": ' }}{{- "Environment: ipython\\n" }}"""
MISTRAL = """{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}"""
GPT_OSS = """{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}"""
TOOLS = (
    Tool("a", parameters={"type": "object"}),
    Tool("b", parameters={"$ref": "#/$defs/X", "$defs": {"X": {}}}),
)


@pytest.mark.parametrize(
    ("source", "tools", "reasoning"),
    [
        (QWEN, ToolFormat.HERMES, None),
        (QWEN_THINKING, ToolFormat.HERMES, ReasoningFormat.THINK),
        (QWEN_CODER, ToolFormat.QWEN3_CODER, None),
        (LLAMA_31, ToolFormat.LLAMA_JSON, None),
        (LLAMA_32, ToolFormat.LLAMA_JSON, None),
        (MISTRAL, ToolFormat.MISTRAL, None),
        (GPT_OSS, ToolFormat.HARMONY, ReasoningFormat.HARMONY),
        ("{{ tools }}", None, None),
    ],
)
def test_the_format_is_that_of_the_chat_template(
    source: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> None:
    assert OutputFormats.of_template(source, takes_tools=True) == OutputFormats(tools, reasoning)


def test_tools_are_described_in_hermes_format_for_a_template_without_tools() -> None:
    assert OutputFormats.of_template("{{ messages }}", takes_tools=False).tools is ToolFormat.HERMES


def test_flags_override_the_template() -> None:
    found = OutputFormats(ToolFormat.HERMES, ReasoningFormat.THINK)
    assert found.chosen("auto", "auto") == found
    assert found.chosen("mistral", "none") == OutputFormats(ToolFormat.MISTRAL, None)
    assert found.chosen("llama3-json", "deepseek-r1").reasoning is ReasoningFormat.DEEPSEEK_R1


def test_reasoning_of_earlier_turns_has_the_name_that_harmonys_template_reads() -> None:
    formats = OutputFormats.of_template(GPT_OSS, takes_tools=True)
    user, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    assert formats.messages([user, answer | {"reasoning_content": "hm"}]) == [
        user,
        answer | {"thinking": "hm"},
    ]


def test_harmonys_tokens_are_visible_to_its_parser_and_where_a_grammar_writes_the_answer_to_nobody() -> None:
    formats = OutputFormats.of_template(GPT_OSS, takes_tools=True)
    assert "<|channel|>" in formats.markers(ToolUse())
    assert formats.markers(ToolUse(TOOLS, ToolChoice.REQUIRED)) == ()
    forced = formats.parser(ToolUse(TOOLS, ToolChoice.REQUIRED), "")
    assert forced
    assert forced.feed('[{"name": "a", "arguments": {}}]') == [Call(0, "a"), Arguments(0, "{}")]


def test_tools_of_a_model_whose_format_is_unknown_are_refused_unless_a_call_is_forced() -> None:
    unknown = OutputFormats(None, None)
    with pytest.raises(InvalidRequest, match="--tool-call-parser"):
        unknown.parser(ToolUse(TOOLS), "")
    parser = unknown.parser(ToolUse(TOOLS, ToolChoice.REQUIRED), "")
    assert parser
    assert parser.feed('[{"name": "a", "arguments": {}}]') == [Call(0, "a"), Arguments(0, "{}")]


def test_reasoning_that_the_template_has_opened_needs_no_tag() -> None:
    formats = OutputFormats(None, ReasoningFormat.THINK)
    opened, other = formats.parser(ToolUse(), "user: hi\n<think>\n"), formats.parser(ToolUse(), "user: hi\n")
    assert opened
    assert other
    assert opened.feed("hm</think>Yes") == [ReasoningPart("hm"), Content("Yes")]
    assert other.feed("hm</think>Yes") == [Content("hm</think>Yes")]


def test_the_schemas_of_several_tools_become_one_without_mixing_their_definitions() -> None:
    schema = forced_schema(ToolUse(TOOLS, ToolChoice.REQUIRED, parallel=False))
    assert schema["maxItems"] == 1
    arguments = [call["properties"]["arguments"] for call in schema["items"]["anyOf"]]
    assert arguments == [{"$ref": "#/$defs/tool.a"}, {"$ref": "#/$defs/tool.b"}]
    assert schema["$defs"]["tool.a"] == {"type": "object"}
    assert schema["$defs"]["tool.b"] == {"$ref": "#/$defs/tool.b/$defs/X", "$defs": {"X": {}}}
    assert forced_schema(ToolUse(TOOLS[:1], ToolChoice.NAMED)) == {"type": "object"}


def test_a_forced_call_of_a_recursive_tool_has_the_tools_own_structure() -> None:
    """`#` is the tool's schema, not the list of calls."""
    properties = {"value": {"type": "integer"}, "left": {"$ref": "#"}, "const": {"const": {"$ref": "#"}}}
    tools = tuple(
        Tool(name, parameters={"type": "object", "properties": properties, "additionalProperties": False})
        for name in ("insert", "remove")
    )
    schema = forced_schema(ToolUse(tools, ToolChoice.REQUIRED))
    right = [{"name": "insert", "arguments": {"value": 1, "left": {"value": 2}, "const": {"$ref": "#"}}}]
    assert says(schema, right)
    assert not says(
        schema, [{"name": "insert", "arguments": {"left": [{"name": "insert", "arguments": {}}]}}]
    )


def test_mistral_gets_ids_of_nine_characters_the_same_for_call_and_result() -> None:
    call = {"id": "call_0123456789", "function": {"name": "a", "arguments": {}}}
    calling, result = with_short_ids(
        [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"]}]
    )
    assert len(result["tool_call_id"]) == 9
    assert calling["tool_calls"][0]["id"] == result["tool_call_id"]
    assert with_short_ids([{"role": "tool", "tool_call_id": "abcDEF123"}])[0]["tool_call_id"] == "abcDEF123"


@pytest.mark.parametrize(
    "answer", ["<think>\nIt is one.</think>\n1", "It is one.</think>1", "\n<think>It is one.</think>1"]
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_that_always_comes_first_may_repeat_the_opening_tag(answer: str, size: int) -> None:
    parser = OutputFormats(None, ReasoningFormat.DEEPSEEK_R1).parser(ToolUse(), "user: hi\n")
    assert parser is not None
    parts = [part for at in range(0, len(answer), size) for part in parser.feed(answer[at : at + size])]
    parts += parser.finish()
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    said = "".join(part.text for part in parts if isinstance(part, Content))
    assert (thought, said) == ("It is one.", "1")


def test_reasoning_that_is_cut_off_within_a_tag_stays_reasoning() -> None:
    parser = OutputFormats(None, ReasoningFormat.DEEPSEEK_R1).parser(ToolUse(), "user: hi\n")
    assert parser is not None
    assert parser.feed("<th") + parser.finish() == [ReasoningPart("<th")]


def test_kimis_calls_have_ids_that_name_the_tool_the_same_for_call_and_result() -> None:
    def call(id: str, name: str) -> dict[str, object]:
        return {"id": id, "function": {"name": name, "arguments": {}}}

    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("a", "f"), call("b", "g")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call("c", "f")]},
        {"role": "tool", "tool_call_id": "lost", "content": "?"},
    ]
    first, two, one, second, lost = OutputFormats(ToolFormat.KIMI_K2).messages(messages)
    assert [call["id"] for call in first["tool_calls"]] == ["functions.f:0", "functions.g:1"]
    assert (two["tool_call_id"], one["tool_call_id"]) == ("functions.g:1", "functions.f:0")
    assert second["tool_calls"][0]["id"] == "functions.f:2"
    assert lost["tool_call_id"] == "lost"


def test_flags_choose_every_format_that_there_is() -> None:
    assert {parser.value for parser in ToolCallParser} == {format.value for format in ToolFormat} | {"auto"}
    formats = {format.value for format in ReasoningFormat}
    assert {parser.value for parser in ReasoningParserChoice} == formats | {"auto", "none"}
