"""Which strings a schema allows, for formats that write them without quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.grammar.json_schema.patterns import ascii_classes, without_look_ahead
from router.api.generation.output.calls.argument_values import found_in


class Unwritable(Exception):
    """The model's own format has no way to enforce the schema; the message says what."""


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Matching:
    regex: str


_ENFORCED: Final = frozenset({"allOf", "not", "if", "$dynamicRef"})
_LONGEST: Final = 2000
_DEPTH: Final = 8


class Looks:
    """How many schemas may be looked at: alternatives of references multiply."""

    def __init__(self, left: int = 2000) -> None:
        self._left = left

    def spend(self) -> None:
        """Raises Unwritable."""
        self._left -= 1
        if self._left < 0:
            raise Unwritable("too many alternatives")


def strings_of(
    schema: Any, root: Mapping[str, Any], looks: Looks, depth: int = _DEPTH
) -> Iterator[Literal | Matching]:
    """Alternatives of the strings that `schema` allows, a part of `root`. Raises Unwritable.

    `format` is an annotation here, as in JSON Schema itself.
    """
    looks.spend()
    if isinstance(schema, bool):
        if schema:
            yield Matching("(?s:.*)")
        return
    if not isinstance(schema, Mapping):
        raise Unwritable("a reference to what is no schema")
    if not depth or schema.keys() & _ENFORCED:
        raise Unwritable("a combination of schemas of a string")
    if isinstance(reference := schema.get("$ref"), str):
        yield from strings_of(found_in(root, reference), root, looks, depth - 1)
        return
    if "string" not in _kinds(schema):
        return
    if (ways := schema.get("anyOf", schema.get("oneOf"))) is not None:
        if schema.keys() & {"enum", "const", "pattern", "minLength", "maxLength"}:
            raise Unwritable("a combination of schemas of a string")
        for way in ways:
            yield from strings_of(way, root, looks, depth - 1)
        return
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        yield from (Literal(value) for value in values if isinstance(value, str))
        return
    yield Matching(_regex(schema))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", "string")
    return kinds if isinstance(kinds, list) else [kinds]


def _regex(schema: Mapping[str, Any]) -> str:
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    most = None if most is None else int(most)
    counted = "(?s:.*)" if not least and most is None else f"(?s:.{{{least},{'' if most is None else most}}})"
    if "pattern" not in schema:
        if max(least, most or 0) > _LONGEST:
            raise Unwritable(f"a string of more than {_LONGEST} characters")
        return counted
    if counted != "(?s:.*)":
        raise Unwritable("a pattern with bounds of the length")
    return _whole(schema["pattern"])


def _whole(pattern: str) -> str:
    """A regular expression of the whole strings in which `pattern` is found."""
    parts = without_look_ahead(pattern)
    inner = ascii_classes(parts[0])
    begins, ends = inner.startswith("^"), inner.endswith("$") and not inner.endswith("\\$")
    inner = inner[begins : len(inner) - ends]
    anchored = begins or ends
    if len(parts) > 1 or re.search(r"\(\?|\\[bB]", inner) or "/" in inner or "\n" in inner:
        raise Unwritable(f"the pattern {pattern}")
    if re.search(r"(?<![\[\\])[\^$]", inner) or (anchored and "|" in inner and not _is_group(inner)):
        raise Unwritable(f"the pattern {pattern}")
    return f"{'' if begins else '(?s:.*)'}({inner}){'' if ends else '(?s:.*)'}"


def _is_group(pattern: str) -> bool:
    """Whether it is one group, so that anchors around it are about all alternatives."""
    return re.fullmatch(r"\([^()]*\)", pattern) is not None
