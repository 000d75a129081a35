"""Pieces of Lark grammars, as llguidance reads them: texts with special tokens, free text, options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from engine.grammar.grammar import MAX_GRAMMAR_BYTES
from router.api.generation.forced.string_values import Unwritable


class OptionalPiece(NamedTuple):
    """One of several parts in a fixed order."""

    source: str
    required: bool


class LarkRules:
    """Collects rules; each method returns the source of a piece, to be used in other rules."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special`: ids of the special tokens of the vocabulary, which no text can stand for."""
        self._special: Final = special
        longest_first = sorted(special, key=len, reverse=True)
        self._split: Final = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if special else None
        self._rules: Final[list[str]] = []
        self._room = MAX_GRAMMAR_BYTES

    def json(self, schema: Mapping[str, Any]) -> str:
        return self._within(f"%json {json.dumps(schema)}")

    def _within(self, source: str) -> str:
        """Raises Unwritable as soon as the grammar is too large."""
        self._room -= len(source)
        if self._room < 0:
            raise Unwritable(f"more than {MAX_GRAMMAR_BYTES} bytes")
        return source

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    def rule(self, body: str, *, suffix: str | None = None) -> str:
        name = f"r{len(self._rules)}"
        attributes = "" if suffix is None else f"[suffix={quoted(suffix)}]"
        self._rules.append(self._within(f"{name}{attributes}: {body}"))
        return name

    def fixed(self, text: str) -> str:
        """`text`, with the special tokens that it names.

        White space is a lexeme of its own: the lexer is greedy, and takes no shorter text that begins a
        longer one.
        """
        found = []
        for piece in self._split.split(text) if self._split else [text]:
            if piece in self._special:
                found.append(f"<[{self._special[piece]}]>")
            else:
                found += [quoted(part) for part in re.split(r"(\s+)", piece) if part]
        return self._within(" ".join(found) or '""')

    def text(self, end: str, *, regex: str = "(?s:.*)", without: Sequence[str] = (), pad: str = "") -> str:
        """Text that matches `regex`, `pad` and then `end`, which it does not hold, nor any of `without`."""
        marker = end
        if self._split and (match := self._split.match(end)):
            marker = match[0]
        body = f"/{regex}{escaped(pad)}/"
        body += "".join(f" & ~/(?s:.*){escaped(word)}(?s:.*)/" for word in dict.fromkeys((marker, *without)))
        if marker in self._special:
            terminal = f"T{len(self._rules)}"
            self._rules.append(f"{terminal}: {body}")
            return f"{terminal} {self.fixed(end)}"
        return self.rule(body, suffix=end)

    def separated(self, options: Sequence[OptionalPiece], separator: str) -> str:
        """The options in order, without some that are not required, and a separator between each two."""
        first, later = '""', '""'
        for option in reversed(options):
            taken = f"{option.source} {later}"
            first, later = (
                self.rule(taken + ("" if option.required else f" | {first}")),
                self.rule(f"{quoted(separator)} {taken}" + ("" if option.required else f" | {later}")),
            )
        return first


def either(pieces: Sequence[str]) -> str:
    if not pieces:
        raise Unwritable("no value at all")
    return pieces[0] if len(pieces) == 1 else f"({' | '.join(pieces)})"


def quoted(text: str) -> str:
    return json.dumps(text)


def escaped(text: str) -> str:
    """A regular expression for `text`."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
