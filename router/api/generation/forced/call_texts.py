"""How calls are written where a grammar enforces them: the texts around names and arguments, as data.

Sources: the chat templates of the models. What is written so is read by the parser of the same format
(`router.api.generation.output`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.output.reasoning import ReasoningTags


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """One JSON object, by the tool's schema."""


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument between tags: strings as they are, other values in JSON."""

    before_key: str
    after_key: str
    value_end: str
    after: str = "\n"
    pad: str = ""
    """Before and after a value, without belonging to it."""


@dataclass(frozen=True, slots=True)
class PythonArguments:
    """`key=value, ...`, with values in JSON, which Python's parser reads with the words of JSON."""


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """`{key:value,...}` without quotes, but `quote` on either side of a string."""

    quote: str
    call_end: str
    """May not come in a string: the call would end there."""


Arguments: TypeAlias = JsonArguments | TaggedArguments | PythonArguments | GemmaArguments
JSON: Final = JsonArguments()
PYTHON: Final = PythonArguments()


@dataclass(frozen=True, slots=True)
class CallTexts:
    before: str
    """Before the name of a call."""
    named: str
    """Between name and arguments."""
    after: str
    """After the arguments."""
    arguments: Arguments = JSON
    begin: str = ""
    """Before the first call."""
    between: str | None = "\n"
    """Between two calls; None: an answer has one."""
    end: str = ""
    """After the last call."""
    numbered: bool = False
    """Whether the name is followed by a colon and a number."""


_OBJECT: Final = partial(CallTexts, before='{"name": "', named='", "arguments": ', after="}", between=", ")
_FUNCTION: Final = partial(
    CallTexts,
    named=">\n",
    arguments=TaggedArguments("<parameter=", ">", "</parameter>"),
)
_PYTHON: Final = partial(CallTexts, before="", named="(", after=")", arguments=PYTHON, between=", ")
_V3: Final = "<｜tool▁call▁begin｜>"
_SEP: Final = "<｜tool▁sep｜>"
_DEEPSEEK: Final = partial(CallTexts, begin="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>")

CALL_TEXTS: Final[Mapping[ToolFormat, CallTexts]] = {
    ToolFormat.HERMES: CallTexts('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    ToolFormat.QWEN3_CODER: _FUNCTION(
        before="<tool_call>\n<function=",
        after="</function>\n</tool_call>",
        arguments=TaggedArguments("<parameter=", ">", "</parameter>", pad="\n"),
    ),
    ToolFormat.SEED_OSS: _FUNCTION(
        before="<seed:tool_call>\n<function=", after="</function>\n</seed:tool_call>"
    ),
    ToolFormat.GLM: CallTexts(
        before="<tool_call>",
        named="\n",
        after="</tool_call>",
        arguments=TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    ToolFormat.HUNYUAN3: CallTexts(
        begin="<tool_calls>\n",
        before="<tool_call>",
        named="<tool_sep>\n",
        after="</tool_call>",
        arguments=TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
        end="\n</tool_calls>",
    ),
    ToolFormat.LONGCAT: CallTexts(
        '<longcat_tool_call>\n{"name": "', '", "arguments": ', "}\n</longcat_tool_call>"
    ),
    ToolFormat.LONGCAT_TAGS: CallTexts(
        before="<longcat_tool_call>",
        named="\n",
        after="</longcat_tool_call>",
        arguments=TaggedArguments(
            "<longcat_arg_key>", "</longcat_arg_key>\n<longcat_arg_value>", "</longcat_arg_value>"
        ),
    ),
    ToolFormat.COHERE: CallTexts(
        begin="<|START_ACTION|>[\n    ",
        before='{"tool_call_id": "0", "tool_name": "',
        named='", "parameters": ',
        after="}",
        between=",\n    ",
        end="\n]<|END_ACTION|>",
    ),
    ToolFormat.APERTUS: CallTexts(
        begin="<|tools_prefix|>[",
        before='{"',
        named='": ',
        after="}",
        between=", ",
        end="]<|tools_suffix|>",
    ),
    ToolFormat.MINIMAX_M2: CallTexts(
        begin="<minimax:tool_call>\n",
        before='<invoke name="',
        named='">\n',
        after="</invoke>",
        arguments=TaggedArguments('<parameter name="', '">', "</parameter>"),
        end="\n</minimax:tool_call>",
    ),
    ToolFormat.KIMI_K2: CallTexts(
        begin="<|tool_calls_section_begin|>",
        before="<|tool_call_begin|>functions.",
        named="<|tool_call_argument_begin|>",
        after="<|tool_call_end|>",
        between="",
        end="<|tool_calls_section_end|>",
        numbered=True,
    ),
    ToolFormat.DEEPSEEK_V3: _DEEPSEEK(
        before=f"{_V3}function{_SEP}", named="\n```json\n", after="\n```<｜tool▁call▁end｜>"
    ),
    ToolFormat.DEEPSEEK_V31: _DEEPSEEK(before=_V3, named=_SEP, after="<｜tool▁call▁end｜>", between=""),
    ToolFormat.GRANITE: _OBJECT(begin="<|tool_call|>[", end="]"),
    ToolFormat.PHI4_MINI: _OBJECT(begin="<|tool_call|>[", end="]<|/tool_call|>"),
    ToolFormat.HUNYUAN: replace(_OBJECT(begin="<tool_calls>[", end="]</tool_calls>"), between=",\n"),
    ToolFormat.LLAMA_JSON: CallTexts('{"name": "', '", "parameters": ', "}", between="; "),
    ToolFormat.MISTRAL: CallTexts("[TOOL_CALLS]", "[ARGS]", "", between=""),
    ToolFormat.HARMONY: CallTexts(
        "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", between=None
    ),
    ToolFormat.PYTHONIC: _PYTHON(begin="[", end="]"),
    ToolFormat.LLAMA4_PYTHONIC: _PYTHON(begin="<|python_start|>[", end="]<|python_end|>"),
    ToolFormat.OLMO3: _PYTHON(begin="<function_calls>\n", between="\n", end="\n</function_calls>"),
    ToolFormat.LFM2: _PYTHON(begin="<|tool_call_start|>[", end="]<|tool_call_end|>"),
    ToolFormat.FUNCTION_GEMMA: CallTexts(
        "<start_function_call>call:",
        "",
        "<end_function_call>",
        GemmaArguments("<escape>", "<end_function_call>"),
        between="",
    ),
    ToolFormat.GEMMA4: CallTexts(
        "<|tool_call>call:", "", "<tool_call|>", GemmaArguments('<|"|>', "<tool_call|>"), between=""
    ),
}
OLDER_MISTRAL: Final = _OBJECT(begin="[TOOL_CALLS][", end="]")
"""For vocabularies without `[ARGS]`."""
HARMONY_ANALYSIS: Final = ReasoningTags("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
