"""A JSON Schema as a document: where its schemas are, and what its references mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Schema: TypeAlias = bool | dict[str, Any]

SINGLE: Final = frozenset(
    {
        *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords whose value is a schema."""
IN_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
IN_OBJECTS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"}
)


_OF_TYPES: Final = {
    "array": (
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "unevaluatedItems",
        "minItems",
        "maxItems",
    ),
    "object": (
        *("dependentRequired", "dependentSchemas", "dependencies", "minProperties", "maxProperties"),
        *("propertyNames", "required", "unevaluatedProperties"),
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""Keywords that are about values of one type, without those that a `$ref` may point into."""


def relevant(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without keywords about types that its `type` excludes: they have no effect."""
    kinds = schema.get("type")
    if kinds is None:
        return schema
    named = {
        "number" if kind == "integer" else kind for kind in (kinds if isinstance(kinds, list) else [kinds])
    }
    without = {key for kind, keys in _OF_TYPES.items() if kind not in named for key in keys}
    return {key: value for key, value in schema.items() if key not in without}


def children(schema: dict[str, Any]) -> Iterator[Schema]:
    """The schemas directly inside; `const`, `enum`, `default` and the like hold values, not schemas."""
    for key, value in schema.items():
        if key in SINGLE and isinstance(value, dict | bool):
            yield value
        elif key in IN_LISTS and isinstance(value, list):
            yield from (item for item in value if isinstance(item, dict | bool))
        elif key in IN_OBJECTS and isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, dict | bool))


def relocated(schema: Any, place: str) -> Any:
    """A document as a part of another, where it is at the JSON pointer `place`: its references stay its own.

    A document with a base URI of its own (`$id`) needs no change.
    """
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    out = dict(schema)
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            out[key] = place + value[1:]
        elif key in SINGLE and isinstance(value, dict):
            out[key] = relocated(value, place)
        elif key in IN_LISTS and isinstance(value, list):
            out[key] = [relocated(item, place) for item in value]
        elif key in IN_OBJECTS and isinstance(value, dict):
            out[key] = {name: relocated(item, place) for name, item in value.items()}
    return out


_NUMBERS: Final = frozenset({"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS: Final = frozenset(
    {
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    }
)
_STRINGS: Final = frozenset({"$ref", "$dynamicRef", "$anchor", "$dynamicAnchor", "$id", "pattern", "format"})


def _check_values(schema: dict[str, Any]) -> None:
    """Raise ValueError, naming the keyword, for a value that the keyword cannot have."""
    for key, value in schema.items():
        if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{key} must be a number")
        if key in _COUNTS and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise ValueError(f"{key} must be a count")
        if key in _COUNTS and value != int(value):
            raise ValueError(f"{key} must be a count")
        if key in _STRINGS and not isinstance(value, str):
            raise ValueError(f"{key} must be a string")
        if key in IN_OBJECTS and not isinstance(value, dict):
            raise ValueError(f"{key} must be an object")
        if key in IN_LISTS - SINGLE and not isinstance(value, list):
            raise ValueError(f"{key} must be an array of schemas")
        if key in SINGLE and not isinstance(value, dict | bool) and not (key == "items" and _is_list(value)):
            raise ValueError(f"{key} must be a schema: an object, true or false")
        if key == "enum" and not _is_list(value):
            raise ValueError("enum must be an array")
        if key == "type" and not _are_strings(value if _is_list(value) else [value]):
            raise ValueError("type must be the name of a type, or an array of them")
        if key == "required" and not (_is_list(value) and _are_strings(value)):
            raise ValueError("required must be an array of names")
        if key in IN_LISTS and _is_list(value) and not all(isinstance(item, dict | bool) for item in value):
            raise ValueError(f"{key} must have schemas: objects, true or false")
        if key == "dependentRequired" and not (
            isinstance(value, dict) and all(map(_is_list, value.values()))
        ):
            raise ValueError("dependentRequired must have arrays of names")
        if key in IN_OBJECTS - {"dependencies"} and not all(
            isinstance(v, dict | bool) for v in value.values()
        ):
            raise ValueError(f"{key} must have schemas: objects, true or false")


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_strings(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


_BUDGET: Final = 30_000
"""Schemas that are looked at to rewrite one document: some tenths of a second."""


class Document:
    """Raises ValueError for keywords with values that they cannot have."""

    def __init__(self, root: Schema) -> None:
        self.root: Final = root
        self._budget = _BUDGET
        self._anchors: Final[dict[str, Schema]] = {}
        self._is_nested = False
        """A schema inside has a base URI of its own, so references are not relative to the root."""
        dynamic: dict[str, int] = {}
        left: list[Schema] = [root]
        while left:
            schema = left.pop()
            if not isinstance(schema, dict):
                continue
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := schema.get(key), str):
                    self._anchors[name] = schema
            if isinstance(name := schema.get("$dynamicAnchor"), str):
                dynamic[name] = dynamic.get(name, 0) + 1
            if "$id" in schema and schema is not root:
                self._is_nested = True
            _check_values(schema)
            left += children(schema)
        self.has_static_anchors: Final = not self._is_nested and all(n == 1 for n in dynamic.values())
        """Whether every `$dynamicRef` can only mean one anchor."""

    def spend(self) -> None:
        """Account for one schema that is looked at. Raises ValueError for combinations that multiply."""
        self._budget -= 1
        if self._budget < 0:
            raise ValueError("it is too complex: it has too many combinations of alternatives")

    def resolve(self, reference: str) -> Schema | None:
        """The schema that a reference means; None if it is not in this document, or may not be."""
        if self._is_nested or not reference.startswith("#"):
            return None
        fragment = reference[1:]
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        here: Any = self.root
        for step in fragment.split("/")[1:]:
            step = step.replace("%25", "%").replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and step in here:
                here = here[step]
            elif isinstance(here, list) and step.isdigit() and int(step) < len(here):
                here = here[int(step)]
            else:
                return None
        return here if isinstance(here, dict | bool) else None
