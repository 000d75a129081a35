"""The formats of calls that are data: markers, and how a call within them is read.

Sources: the chat templates of the models, and what their model cards print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final

from router.api.generation.output.calls.call_reader import NamedObjectReader, ObjectReader
from router.api.generation.output.calls.tagged_call import CallTags, TaggedCallReader
from router.api.generation.output.calls.written_calls import PYTHON, Syntax, WrittenCallsReader, gemma_syntax
from router.api.generation.output.sections import CallFormat, Reads
from router.api.generation.tools import Tool


class ToolFormat(Enum):
    LLAMA_JSON = "llama3-json"
    HERMES = "hermes"
    MISTRAL = "mistral"
    HARMONY = "harmony"
    QWEN3_CODER = "qwen3-coder"
    GLM = "glm45"
    KIMI_K2 = "kimi-k2"
    DEEPSEEK_V3 = "deepseek-v3"
    DEEPSEEK_V31 = "deepseek-v31"
    MINIMAX_M2 = "minimax-m2"
    SEED_OSS = "seed-oss"
    GRANITE = "granite"
    HUNYUAN = "hunyuan"
    PHI4_MINI = "phi4-mini"
    PYTHONIC = "pythonic"
    LLAMA4_PYTHONIC = "llama4-pythonic"
    OLMO3 = "olmo3"
    LFM2 = "lfm2"
    FUNCTION_GEMMA = "functiongemma"
    GEMMA4 = "gemma4"
    HUNYUAN3 = "hunyuan3"
    LONGCAT = "longcat"
    LONGCAT_TAGS = "longcat-tags"
    COHERE = "cohere"
    APERTUS = "apertus"


def _objects(index: int, tools: Mapping[str, Tool]) -> ObjectReader:
    return ObjectReader(index)


def _tagged(tags: CallTags) -> Reads:
    return lambda index, tools: TaggedCallReader(index, tags, tools)


def _named(before: str, after: str, named: Callable[[str], str] = str.strip) -> Reads:
    return lambda index, tools: NamedObjectReader(index, before, after, named)


def _written(end: str, syntax: Syntax) -> Reads:
    return lambda index, tools: WrittenCallsReader(index, end, syntax)


def _of_kimi(name: str) -> str:
    """`functions.NAME:NUMBER`"""
    return name.strip().removeprefix("functions.").rpartition(":")[0] or name.strip()


def _of_key(name: str) -> str:
    """`"NAME`, the key of an object with the arguments."""
    return name.strip().removeprefix('"')


_FUNCTION = partial(
    CallTags,
    name="<function=",
    name_ends=(">",),
    key="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
    end="</function>",
)
_KEYS = partial(
    CallTags,
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
)
_KEY_MARKERS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_V3 = "<｜tool▁call▁begin｜>"
_SEP = "<｜tool▁sep｜>"
_DEEPSEEK = partial(
    CallFormat,
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call=_V3,
    markers=(_V3, _SEP, "<｜tool▁call▁end｜>"),
)

CALL_FORMATS: Final[Mapping[ToolFormat, CallFormat]] = {
    ToolFormat.HERMES: CallFormat("<tool_call>", "</tool_call>", "{", _objects),
    ToolFormat.QWEN3_CODER: CallFormat(
        "<tool_call>", "</tool_call>", "<function=", _tagged(_FUNCTION(pads=True)), bare=True
    ),
    ToolFormat.SEED_OSS: CallFormat(
        "<seed:tool_call>", "</seed:tool_call>", "<function=", _tagged(_FUNCTION())
    ),
    ToolFormat.GLM: CallFormat(
        "<tool_call>",
        "</tool_call>",
        "",
        _tagged(_KEYS(name="", name_ends=("\n", "<arg_key>", "</tool_call>"), keeps_ends=True)),
        markers=_KEY_MARKERS,
    ),
    ToolFormat.HUNYUAN3: CallFormat(
        "<tool_calls>",
        "</tool_calls>",
        "<tool_call>",
        _tagged(_KEYS(name="<tool_call>", name_ends=("<tool_sep>",))),
        markers=("<tool_call>", "</tool_call>", "<tool_sep>", *_KEY_MARKERS),
    ),
    ToolFormat.LONGCAT: CallFormat("<longcat_tool_call>", "</longcat_tool_call>", "{", _objects),
    ToolFormat.LONGCAT_TAGS: CallFormat(
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        "",
        _tagged(
            CallTags(
                name="",
                name_ends=("\n", "<longcat_arg_key>", "</longcat_tool_call>"),
                key="<longcat_arg_key>",
                key_end="</longcat_arg_key>",
                value="<longcat_arg_value>",
                value_end="</longcat_arg_value>",
                end="</longcat_tool_call>",
                keeps_ends=True,
            )
        ),
        markers=(
            *("<longcat_arg_key>", "</longcat_arg_key>"),
            *("<longcat_arg_value>", "</longcat_arg_value>"),
        ),
    ),
    ToolFormat.COHERE: CallFormat("<|START_ACTION|>", "<|END_ACTION|>", "{", _objects),
    ToolFormat.APERTUS: CallFormat("<|tools_prefix|>", "<|tools_suffix|>", "{", _named("{", '":', _of_key)),
    ToolFormat.MINIMAX_M2: CallFormat(
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        '<invoke name="',
        _tagged(
            CallTags(
                name='<invoke name="',
                name_ends=('">',),
                key='<parameter name="',
                key_end='">',
                value="",
                value_end="</parameter>",
                end="</invoke>",
            )
        ),
    ),
    ToolFormat.KIMI_K2: CallFormat(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        _named("<|tool_call_begin|>", "<|tool_call_argument_begin|>", _of_kimi),
        markers=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    ToolFormat.DEEPSEEK_V3: _DEEPSEEK(reads=_named(f"{_V3}function{_SEP}", "\n")),
    ToolFormat.DEEPSEEK_V31: _DEEPSEEK(reads=_named(_V3, _SEP)),
    ToolFormat.GRANITE: CallFormat("<|tool_call|>", "", "{", _objects),
    ToolFormat.PHI4_MINI: CallFormat("<|tool_call|>", "<|/tool_call|>", "{", _objects),
    ToolFormat.HUNYUAN: CallFormat("<tool_calls>", "</tool_calls>", "{", _objects),
    ToolFormat.LLAMA4_PYTHONIC: CallFormat(
        "<|python_start|>", "<|python_end|>", "", _written("<|python_end|>", PYTHON)
    ),
    ToolFormat.OLMO3: CallFormat(
        "<function_calls>", "</function_calls>", "", _written("</function_calls>", PYTHON)
    ),
    ToolFormat.LFM2: CallFormat(
        "<|tool_call_start|>", "<|tool_call_end|>", "", _written("<|tool_call_end|>", PYTHON)
    ),
    ToolFormat.FUNCTION_GEMMA: CallFormat(
        "<start_function_call>",
        "<end_function_call>",
        "",
        _written("<end_function_call>", gemma_syntax("<escape>")),
        markers=("<escape>",),
    ),
    ToolFormat.GEMMA4: CallFormat(
        "<|tool_call>",
        "<tool_call|>",
        "",
        _written("<tool_call|>", gemma_syntax('<|"|>')),
        markers=('<|"|>',),
    ),
}
"""Formats whose calls stand in marked sections; the others have parsers of their own."""

_SIGNS: Final[tuple[tuple[str, ToolFormat], ...]] = (
    ("[TOOL_CALLS]", ToolFormat.MISTRAL),
    ("<|tool_calls_section_begin|>", ToolFormat.KIMI_K2),
    ("<|im_system|>tool_declare", ToolFormat.KIMI_K2),
    ("<minimax:tool_call>", ToolFormat.MINIMAX_M2),
    ("<seed:tool_call>", ToolFormat.SEED_OSS),
    ("<start_function_call>", ToolFormat.FUNCTION_GEMMA),
    ("<tool_call|>", ToolFormat.GEMMA4),
    ("<function_calls>", ToolFormat.OLMO3),
    ("<|tool_call_start|>", ToolFormat.LFM2),
    ("<|python_start|>", ToolFormat.LLAMA4_PYTHONIC),
    ("<|START_ACTION|>", ToolFormat.COHERE),
    ("<|tools_prefix|>", ToolFormat.APERTUS),
    ("<longcat_arg_key>", ToolFormat.LONGCAT_TAGS),
    ("<longcat_tool_call>", ToolFormat.LONGCAT),
    ("<tool_sep>", ToolFormat.HUNYUAN3),
    ("<tool_calls>", ToolFormat.HUNYUAN),
    ("<|/tool_call|>", ToolFormat.PHI4_MINI),
    ("<|tool_call|>", ToolFormat.GRANITE),
    ("<arg_key>", ToolFormat.GLM),
    ("<function=", ToolFormat.QWEN3_CODER),
    ("<tool_call>", ToolFormat.HERMES),
    ("<|python_tag|>", ToolFormat.LLAMA_JSON),
)
"""What a chat template contains, and the format that it teaches; the first that is found counts."""


def taught_by(template: str, *, takes_tools: bool = True) -> ToolFormat | None:
    """The format of calls that a chat template teaches; None: an unknown one, or none.

    A template that does not put tools into the prompt has DeepSeek's calls, or this server describes Hermes'.
    """
    if "<｜tool▁calls▁begin｜>" in template:
        return ToolFormat.DEEPSEEK_V3 if "```json" in template else ToolFormat.DEEPSEEK_V31
    if not takes_tools:
        return ToolFormat.HERMES
    if '"parameters"' in template and "ipython" in template:
        return ToolFormat.LLAMA_JSON
    return next((format for sign, format in _SIGNS if sign in template), None)
