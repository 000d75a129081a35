"""Arguments that a model writes as text between tags: the JSON of their values, by the tool's schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from router.api.generation.tools import Tool

_ANY: Final[frozenset[str]] = frozenset()
_WORDS: Final = {"true": True, "false": False, "null": None, "none": None}
_LONGEST: Final = 1 << 14
"""Characters of a literal of Python: parsing it takes the event loop's time."""
_DEPTH: Final = 8
"""Depth to which references and combinations of a schema are followed."""
_LOOKS: Final = 1000
"""Schemas that are looked at for one argument: alternatives of references multiply."""


def types_of(tool: Tool | None, name: str) -> frozenset[str]:
    """JSON types that the tool's argument `name` may have; empty if the schema does not say."""
    if tool is None:
        return _ANY
    properties = tool.parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return _types(schema, tool.parameters, _DEPTH, iter(range(_LOOKS)))


def is_text(types: frozenset[str]) -> bool:
    """Whether an argument is a string whatever is written, so that it can be passed on as it comes."""
    return types == {"string"}


def json_of(text: str, types: frozenset[str]) -> str:
    """JSON of the value written as `text`; a string if nothing else fits.

    Templates write strings as they are, so `5` may be a number or a string: a schema that allows strings
    decides for one, unless the text is the word null and the schema allows that too.
    """
    value = text.strip()
    word = value.lower()
    if "string" in types and not (word in ("null", "none") and "null" in types):
        return dumped(text)
    if word in _WORDS and (not types or _allows(types, _WORDS[word])):
        return dumped(_WORDS[word])
    try:
        parsed = json.loads(value, parse_constant=_refuse)
        # As the model wrote it: a large number or the order of keys must not change.
        return value if types or not isinstance(parsed, str) else dumped(text)
    except RecursionError:
        return dumped(text)
    except ValueError:
        return dumped(text) if len(value) > _LONGEST else _of_python(value, text)


def _of_python(value: str, text: str) -> str:
    """JSON of a literal of Python, which some templates teach; else a string."""
    try:
        return dumped(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return dumped(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def dumped(value: object) -> str:
    """JSON of a value. Raises ValueError or TypeError if it has none."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _allows(types: frozenset[str], value: bool | None) -> bool:
    return ("null" if value is None else "boolean") in types


def _types(schema: Any, root: Mapping[str, Any], depth: int, looks: Iterator[int]) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not depth or next(looks, None) is None:
        return _ANY
    if isinstance(reference := schema.get("$ref"), str):
        return _types(found_in(root, reference), root, depth - 1, looks)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(map(str, kind))
    for key in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(key), list):
            each = [_types(way, root, depth - 1, looks) for way in ways]
            return frozenset().union(*each) if all(each) else _ANY
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    if all(isinstance(value, str) for value in values):
        return frozenset({"string"})
    return _ANY


def found_in(root: Mapping[str, Any], reference: str) -> Any:
    """What a local reference (`#/$defs/name`) names; None if there is no such place."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
