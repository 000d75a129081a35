"""How the answer to a forced tool choice is constrained: in the model's own format, where it can be."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.grammar.grammar import Grammar, GrammarKind
from router.api.generation.forced.call_grammar import CallGrammar
from router.api.generation.forced.call_texts import CALL_TEXTS, HARMONY_ANALYSIS, OLDER_MISTRAL
from router.api.generation.forced.lark import LarkRules
from router.api.generation.forced.string_values import Unwritable
from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.reasoning import TAGS, ReasoningFormat, ReasoningTags
from router.api.generation.tools import ToolChoice, ToolUse, forced_schema

_log = logging.getLogger(__name__)
_SPACE: Final = r"/[ \n]{0,4}/"


@dataclass(frozen=True, slots=True)
class ForcedCalls:
    grammar: Grammar
    read_as: ToolUse
    """How the answer is read: calls in the model's own format as those that it chose to write."""


def forced_calls(
    formats: OutputFormats, use: ToolUse, prompt: str, special: Mapping[str, int]
) -> ForcedCalls:
    """The grammar of the answer to `prompt`; `special`: ids of the vocabulary's special tokens.

    JSON, where the format of the model is unknown or cannot enforce the schema of a tool. Costs O(schemas).
    """
    try:
        mixed = formats.reasoning is ReasoningFormat.HARMONY and formats.tools is not ToolFormat.HARMONY
        if formats.tools is not None and not mixed:
            text = _own_format(formats, formats.tools, use, prompt, special)
            return ForcedCalls(Grammar(GrammarKind.EBNF, text), replace(use, choice=ToolChoice.AUTO))
    except (Unwritable, RecursionError) as reason:
        _log.debug("a forced call is written in JSON: %s has no place for %s", formats.tools, reason)
    return ForcedCalls(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(forced_schema(use))), use)


def _own_format(
    formats: OutputFormats, format: ToolFormat, use: ToolUse, prompt: str, special: Mapping[str, int]
) -> str:
    rules = LarkRules(special)
    texts = CALL_TEXTS[format]
    if format is ToolFormat.MISTRAL and special and "[ARGS]" not in special:
        texts = OLDER_MISTRAL
    several = use.parallel and use.choice is ToolChoice.REQUIRED
    calls = CallGrammar(texts, rules).calls(use.tools, several=several)
    return rules.source(f"{_thinking(formats, prompt, rules)} {calls}")


def _thinking(formats: OutputFormats, prompt: str, rules: LarkRules) -> str:
    """Reasoning before the calls: as the prompt has opened or closed it, else as the model likes."""
    reasoning = formats.reasoning
    if reasoning is None:
        return ""
    if reasoning is ReasoningFormat.HARMONY:
        return f"({_between(HARMONY_ANALYSIS, rules)})?"
    tags, end = TAGS[reasoning], prompt.rstrip()
    if end.endswith(tags.opening):
        return f"{rules.text(tags.closing)} {_SPACE}"
    if reasoning is ReasoningFormat.DEEPSEEK_R1:
        return f"({rules.fixed(tags.opening)})? {rules.text(tags.closing)} {_SPACE}"
    if end.endswith(tags.closing):
        return ""
    return f"({_between(tags, rules)} {_SPACE})?"


def _between(tags: ReasoningTags, rules: LarkRules) -> str:
    return f"{rules.fixed(tags.opening)} {rules.text(tags.closing)}"
