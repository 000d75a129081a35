"""Calls that are read when they are complete: those in Python's syntax and in Gemma's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from router.api.generation.output.calls.argument_values import dumped
from router.api.generation.output.parts import Arguments, Call, Part, content

Calls: TypeAlias = list[tuple[str, dict[str, Any]]]

_LONGEST: Final = 1 << 15
"""Characters of a section of calls: parsing it takes the event loop's time. A longer one is content."""
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}


class NotCalls(ValueError):
    """The text is not in the syntax."""


def python_calls(text: str) -> Calls:
    """`[f(a=1), g(b="x")]`, or one call a line. Raises NotCalls."""
    try:
        tree = ast.parse(text.strip(), mode="exec")
        found = [call for statement in tree.body for call in _calls_in(statement)]
        return [(ast.unparse(call.func), _keywords(call)) for call in found]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NotCalls(str(error)) from error


def _calls_in(statement: ast.stmt) -> Iterable[ast.Call]:
    expression = statement.value if isinstance(statement, ast.Expr) else None
    elements = expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]
    for element in elements:
        if not isinstance(element, ast.Call) or not isinstance(element.func, ast.Name | ast.Attribute):
            raise NotCalls("no call")
        yield element


def _keywords(call: ast.Call) -> dict[str, Any]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise NotCalls("an argument without a name")
    return {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}


def _literal(node: ast.expr) -> Any:
    """A literal of Python, in which the words of JSON stand for theirs."""

    class JsonWords(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            if name.id not in _JSON_NAMES:
                raise NotCalls(f"the name {name.id}")
            return ast.copy_location(ast.Constant(_JSON_NAMES[name.id]), name)

        def visit_Constant(self, constant: ast.Constant) -> ast.expr:
            if isinstance(constant.value, float):
                constant.value = _finite(constant.value)
            return constant

    value = ast.literal_eval(JsonWords().visit(node))
    dumped(value)  # sets and bytes are no JSON
    return value


def _finite(number: float) -> float:
    """A number such as 1e999, which is JSON, as the largest that a float can be."""
    return max(-sys.float_info.max, min(number, sys.float_info.max))


_GEMMA_CALL: Final = re.compile(r"\s*call:([\w.-]+)\s*")


def gemma_calls(quote: str) -> Callable[[str], Calls]:
    """`call:NAME{key:value,...}`, in which `quote` stands on either side of a string."""

    def calls(text: str) -> Calls:
        found: Calls = []
        place = 0
        while match := _GEMMA_CALL.match(text, place):
            reader = _GemmaValue(text, match.end(), quote)
            arguments = reader.value(0)
            if not isinstance(arguments, dict):
                raise NotCalls("no arguments")
            found.append((match[1], arguments))
            place = reader.place
        if not found or text[place:].strip():
            raise NotCalls("no call")
        return found

    return calls


class _GemmaValue:
    """Recursive descent over objects, lists, quoted strings and bare words."""

    def __init__(self, text: str, place: int, quote: str) -> None:
        self._text: Final = text
        self._quote: Final = quote
        self.place = place

    def value(self, depth: int) -> Any:
        if depth > 100:
            raise NotCalls("too deep")
        if self._takes("{"):
            return self._object(depth)
        if self._takes("["):
            values: list[Any] = []
            while not self._takes("]"):
                values.append(self.value(depth + 1))
                self._takes(",")
            return values
        if self._takes(self._quote):
            return self._until(self._quote)
        return _word(self._bare())

    def _object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not self._takes("}"):
            key = self._until(self._quote) if self._takes(self._quote) else self._bare(":")
            if not self._takes(":") or not key:
                raise NotCalls("a key without a value")
            fields[key] = self.value(depth + 1)
            self._takes(",")
        return fields

    def _takes(self, token: str) -> bool:
        while self._text[self.place : self.place + 1].isspace():
            self.place += 1
        if self._text.startswith(token, self.place):
            self.place += len(token)
            return True
        if self.place >= len(self._text):
            raise NotCalls("it ends early")
        return False

    def _until(self, token: str) -> str:
        end = self._text.find(token, self.place)
        if end < 0:
            raise NotCalls("a string without an end")
        text, self.place = self._text[self.place : end], end + len(token)
        return text

    def _bare(self, ends: str = ",}]") -> str:
        start = self.place
        while self.place < len(self._text) and self._text[self.place] not in ends:
            self.place += 1
        if start == self.place:
            raise NotCalls("nothing where a value should be")
        return self._text[start : self.place].strip()


def _word(text: str) -> Any:
    if text in _JSON_NAMES:
        return _JSON_NAMES[text]
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        return _finite(value) if any(char.isdigit() for char in text) else text  # not nan, inf
    return text


@dataclass(frozen=True, slots=True)
class Syntax:
    """How written calls are read."""

    calls: Callable[[str], Calls]
    """Raises NotCalls."""
    ends_in_string: Callable[[str], bool]
    """Whether a text ends within a string, which may hold the marker of the end of calls."""


def gemma_syntax(quote: str) -> Syntax:
    return Syntax(gemma_calls(quote), lambda text: text.count(quote) % 2 == 1)


_STRINGS: Final = re.compile(r"""\"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")
PYTHON: Final = Syntax(python_calls, lambda text: bool(re.search("[\"']", _STRINGS.sub("", text))))


class WrittenCallsReader:
    """Reads up to `end`, or to the end of the answer, and then all calls at once."""

    def __init__(self, index: int, end: str, syntax: Syntax) -> None:
        self._index: Final = index
        self._end: Final = end
        self._syntax: Final = syntax
        self._searched = 0
        """Where the search for `end` goes on."""
        self.text = ""
        self.done = False
        self.broken = False
        self.begun = False

    def feed(self, text: str) -> tuple[list[Part], str]:
        self.text += text
        place = self.text.find(self._end, self._searched)
        while place >= 0 and place <= _LONGEST and self._syntax.ends_in_string(self.text[:place]):
            place = self.text.find(self._end, place + 1)
        if place < 0:
            self._searched = max(0, len(self.text) - len(self._end))
            self.broken = len(self.text) > _LONGEST + len(self._end)
            return [], ""
        self.text, rest = self.text[:place], self.text[place:]  # the marker is the section's
        return self._parts(self.text), rest

    def finish(self) -> list[Part]:
        return self._parts(self.text)

    def _parts(self, text: str) -> list[Part]:
        try:
            calls = self._syntax.calls(text) if len(text) <= _LONGEST else []
        except NotCalls:
            calls = []
        if not calls:
            self.broken = True
            return []
        self.text, self.done, self.begun = "", True, True
        return [
            part
            for index, (name, arguments) in enumerate(calls, start=self._index)
            for part in (Call(index, name), Arguments(index, dumped(arguments)))
        ]


class PythonicParser:
    """Llama 3.2: an answer that is a list of calls from its first character to its last."""

    def __init__(self) -> None:
        self._held: str | None = ""
        """The answer so far; None: it is no list of calls."""

    def feed(self, text: str) -> list[Part]:
        if self._held is None:
            return content(text)
        self._held += text
        if len(self._held) <= _LONGEST and self._held.lstrip()[:1] in ("", "["):
            return []
        text, self._held = self._held, None
        return content(text)

    def finish(self) -> list[Part]:
        if self._held is None:
            return []
        reader = WrittenCallsReader(0, "", PYTHON)
        reader.text = self._held
        return reader.finish() or content(self._held)
