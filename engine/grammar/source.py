"""From a client's grammar to the form that llguidance compiles. Needs no vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from engine.errors import GrammarError
from engine.grammar.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from engine.grammar.json_schema import divisors
from engine.grammar.json_schema.patterns import ascii_classes
from engine.grammar.json_schema.rewriting import rewritten

LIMITS: Final = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""On what one grammar may cost: 100 MB of lexer states, and by the library's defaults 15 ms a mask."""

_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{0,40}"
"""Between the tokens of JSON. Without a bound, a model may write white space until its context is full."""
_JSON: Final[Any] = {
    "whitespace_pattern": _WHITESPACE,
    "lenient": False,
    "json_allowed_escapes": '"\\bfnrt',  # without \\u, with which a property could be spelled in two ways
}
_MAX_DIVISOR: Final = 10_000
_LARK: Final = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|%json\s*')
"""Comments, texts and regular expressions of Lark, within which `%json` means nothing; and `%json`."""
_DECODER: Final = json.JSONDecoder()
_TOKEN_ID: Final = re.compile(r"<\[\d+\]>")
_OPENING: Final = b"{["
_MAX_OPENED: Final = 3
_MAX_REASON: Final = 300
"""Characters of the library's own message that are passed on."""


def check_grammar(grammar: Grammar) -> None:
    """Raise GrammarError unless the grammar can be compiled, and an output can begin with it.

    Takes milliseconds for most, and any time and memory for some: only for processes with limits.
    """
    source = _TOKEN_ID.sub("<[0]>", source_of(grammar))  # ids of the model's vocabulary are unknown here
    reason = LLMatcher.validate_grammar(source, limits=LIMITS)
    if reason and not reason.startswith("WARNING"):
        raise rejected(grammar, reason)
    matcher = LLMatcher(_bytes(), source, log_level=0, limits=LIMITS)
    matcher.compute_bitmask()  # fails for a grammar that no text follows
    _open(grammar, matcher, _MAX_OPENED)


def _open(grammar: Grammar, matcher: LLMatcher, depth: int) -> None:
    """Raise GrammarError if brackets and braces, where the grammar allows them, lead to too large a state."""
    if matcher.is_error():
        raise rejected(grammar, matcher.get_error())
    for byte in _OPENING if depth else b"":
        opened = matcher.deep_copy()
        if opened.validate_tokens([byte]):
            opened.consume_token(byte)
            _open(grammar, opened, depth - 1)


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary of bytes, with which every grammar can be followed."""
    return LLTokenizer("byte")


def require_size(grammar: Grammar) -> None:
    """Raise GrammarError for a text that is too long."""
    if len(grammar.text) > MAX_GRAMMAR_BYTES or len(grammar.text.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"the {_NAMES[grammar.kind]} is larger than {MAX_GRAMMAR_BYTES} bytes")


def source_of(grammar: Grammar) -> str:
    """The grammar in llguidance's own form. Raises GrammarError for what cannot be read as its kind."""
    require_size(grammar)
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                schema = rewritten(grammar.text)
                _check_divisors(grammar)
                return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(ascii_classes(grammar.text))
            case GrammarKind.CHOICE:
                return LLMatcher.grammar_from_lark(_one_of(grammar.text))
            case GrammarKind.EBNF:
                _check_divisors(grammar)
                return LLMatcher.grammar_from_lark(_with_schemas_rewritten(any_to_lark(grammar.text)))
    except (ValueError, GbnfToLarkError, RecursionError) as error:
        raise rejected(grammar, str(error)) from None


def rejected(grammar: Grammar, reason: str) -> GrammarError:
    """The error for a grammar that the library does not take, with the first lines of its reason."""
    if "NoExtensionBias" in reason:
        reason = "no text follows it; a definition may refer to itself without end"
    reason = reason.partition("<non-verbose/>")[0].strip()
    return GrammarError(f"the {_NAMES[grammar.kind]} cannot be used: {reason[:_MAX_REASON]}")


_NAMES: Final = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.CHOICE: "list of choices",
    GrammarKind.EBNF: "grammar",
}


def divisors_of(grammar: Grammar) -> Iterator[int]:
    """Numbers for each of whose remainders the lexer has a state, from `multipleOf` in a schema."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            yield from divisors.divisors_of(grammar.text)
        case GrammarKind.EBNF:
            for _, _, schema in _schemas_in(grammar.text):
                yield from divisors.divisors_of(schema)


def _schemas_in(lark: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and text of the JSON after each `%json`. Raises ValueError where there is none."""
    place = 0
    while found := _LARK.search(lark, place):
        place = found.end()
        if found[0].startswith("%json"):
            _, place = _DECODER.raw_decode(lark, found.end())
            yield found.end(), place, lark[found.end() : place]


def _with_schemas_rewritten(lark: str) -> str:
    """The grammar with its JSON Schemas in the keywords that the library enforces. Raises ValueError."""
    pieces, place = [], 0
    for begin, end, text in _schemas_in(lark):
        schema = json.loads(rewritten(text))
        pieces += [lark[place:begin], json.dumps({"x-guidance": _JSON} | schema)]
        place = end
    return "".join([*pieces, lark[place:]])


def _check_divisors(grammar: Grammar) -> None:
    """Raise ValueError for a `multipleOf` that takes seconds to compile."""
    if max(divisors_of(grammar), default=0) > _MAX_DIVISOR:
        raise ValueError(
            f"multipleOf may have at most the digits of {_MAX_DIVISOR}, and so may the least common multiple"
            " of all that apply to the same number"
        )


def _one_of(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValueError("it must be a JSON array of strings, none of them empty")
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)
