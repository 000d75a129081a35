"""JSON Schemas in the keywords that llguidance enforces.

A rewritten schema accepts the same values or fewer, never others. Fewer, for example: an item that `contains`
asks for comes first, unique items come in the order in which they are listed, `unevaluatedProperties` goes by
the schemas that an alternative names.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from engine.grammar.json_schema.document import IN_LISTS, IN_OBJECTS, SINGLE, Document, Schema, relevant
from engine.grammar.json_schema.negation import TYPES, are_disjoint, negation
from engine.grammar.json_schema.patterns import BUILT_IN, FORMATS, ascii_classes, without_look_ahead
from engine.grammar.json_schema.unevaluated import UNEVALUATED, closed

_NO_CONTROL: Final = re.compile(r"[^\x00-\x07\x0b\x0e-\x1f]*")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MAX_UNIQUE: Final = 8
"""Different values of items that must be unique: their subsets are listed."""
_MAX_BYTES: Final = 1 << 20


def rewritten(text: str) -> str:
    """Raises ValueError for what cannot be enforced, and RecursionError for a schema nested too deeply."""
    root = json.loads(text)
    if root is False or not isinstance(root, dict | bool):
        raise ValueError("it must be an object or true")
    _check_characters(root)
    schema = _Rewriting(Document(root)).schema(root)
    result = json.dumps({} if schema is True else schema)
    if len(result) > _MAX_BYTES:
        raise ValueError("it is too complex: it has too many combinations of alternatives")
    return result


def _check_characters(value: Any) -> None:
    """Raise ValueError for characters that outputs have no spelling for: with \\u, a property could be
    spelled in two ways, and so come twice."""
    if isinstance(value, str) and not _NO_CONTROL.fullmatch(value):
        raise ValueError("its texts have control characters other than \\b, \\f, \\n, \\r and \\t")
    if isinstance(value, dict):
        for key, part in value.items():
            _check_characters(key)
            if key not in _ANNOTATIONS:
                _check_characters(part)
    elif isinstance(value, list):
        for part in value:
            _check_characters(part)


class _Rewriting:
    def __init__(self, document: Document) -> None:
        self._document: Final = document

    def schema(self, schema: Schema) -> Schema:
        if isinstance(schema, bool):
            return schema
        self._document.spend()
        schema = relevant(schema)
        if UNEVALUATED & schema.keys():
            return self.schema(closed(self._document, schema))
        out = self._with_children(dict(schema))
        more: list[Schema] = [*self._strings(out), *self._arrays(out), *self._objects(out)]
        more += self._conditions(out)
        self._references(out)
        if more:
            out["allOf"] = [*out.get("allOf", ()), *more]
        return out

    def _with_children(self, out: dict[str, Any]) -> dict[str, Any]:
        """Children of keywords that stay; the others are rewritten where they are replaced."""
        for key, value in out.items():
            if key in _REPLACED:
                continue
            if key in SINGLE and isinstance(value, dict | bool):
                out[key] = self.schema(value)
            elif key in IN_LISTS and isinstance(value, list):
                out[key] = [self.schema(item) for item in value]
            elif key in IN_OBJECTS:
                out[key] = {name: self.schema(item) for name, item in value.items()}
        for key in _COUNTS:
            if key in out:
                out[key] = int(out[key])
        return out

    # ------------------------------------------------------------------------------ strings

    def _strings(self, out: dict[str, Any]) -> Iterator[Schema]:
        patterns: list[str] = []
        if "pattern" in out:
            patterns += map(ascii_classes, without_look_ahead(out.pop("pattern")))
        if (name := out.get("format")) is not None and name not in BUILT_IN:
            del out["format"]
            patterns += FORMATS.get(name, ())
        if patterns:
            out["pattern"] = patterns[0]
        yield from ({"pattern": pattern} for pattern in patterns[1:])

    # ------------------------------------------------------------------------------ arrays

    def _arrays(self, out: dict[str, Any]) -> Iterator[Schema]:
        if "contains" in out:
            wanted, least = out.pop("contains"), int(out.pop("minContains", 1))
            most = out.pop("maxContains", None)
            if least:
                yield {"prefixItems": [self.schema(wanted)] * least, "minItems": least}
            if most is not None:
                yield {"maxItems": int(most)}
        out.pop("minContains", None)
        out.pop("maxContains", None)
        if out.pop("uniqueItems", False) and out.get("maxItems", 2) > 1:
            yield {"anyOf": [{"type": [name for name in TYPES if name != "array"]}, *self._unique(out)]}

    def _unique(self, out: dict[str, Any]) -> Iterator[Schema]:
        """The arrays without repetitions. Raises ValueError if the values of items are not listed."""
        prefix = [self._values(item) for item in out.get("prefixItems", ())]
        rest = self._values(out.get("items", True))
        if rest is None or None in prefix or len(rest) > _MAX_UNIQUE:
            raise ValueError(
                f"uniqueItems needs items of at most {_MAX_UNIQUE} values, listed by enum, const or boolean"
            )
        known = [values for values in prefix if values is not None]
        found = 0
        for count in range(len(known) + 1):
            for head in itertools.product(*known[:count]):
                tails = [()] if count < len(known) else _subsets(rest)
                for tail in tails:
                    items = [*head, *tail]
                    if len({json.dumps(item) for item in items}) < len(items):
                        continue
                    found += 1
                    if found > 1 << _MAX_UNIQUE:
                        raise ValueError("uniqueItems has too many combinations of values")
                    yield {
                        "type": "array",
                        "prefixItems": [{"const": item} for item in items],
                        "items": False,
                        "minItems": len(items),
                        "maxItems": len(items),
                    }

    def _values(self, schema: Schema | None, depth: int = 8) -> list[Any] | None:
        """All values of a schema, each once; None: they are not listed."""
        if schema is False:
            return []
        if not isinstance(schema, dict) or not depth:
            return None
        if "$ref" in schema:
            return self._values(self._document.resolve(schema["$ref"]), depth - 1)
        if "const" in schema:
            values = [schema["const"]]
        elif "enum" in schema:
            values = schema["enum"]
        elif schema.get("type") == "boolean":
            values = [True, False]
        else:
            return None
        if any(isinstance(value, dict | list | float) for value in values):
            return None
        return [json.loads(value) for value in dict.fromkeys(map(json.dumps, values))]

    # ------------------------------------------------------------------------------ objects

    def _objects(self, out: dict[str, Any]) -> Iterator[Schema]:
        for name, needed in out.pop("dependentRequired", {}).items():
            yield self._if_present(name, {"required": needed})
        for name, schema in out.pop("dependentSchemas", {}).items():
            yield self._if_present(name, self.schema(schema))
        for name, value in out.pop("dependencies", {}).items():
            needed = {"required": value} if isinstance(value, list) else self.schema(value)
            yield self._if_present(name, needed)
        if "propertyNames" in out:
            self._name_properties(out, out.pop("propertyNames"))
        least, required = out.get("minProperties", 0), len(set(out.get("required", ())))
        is_open = out.get("additionalProperties", True) is not False or "patternProperties" in out
        if is_open and least > required + 1:
            raise ValueError(
                f"minProperties {least} needs {least - 1} required properties: the names of others may repeat"
            )

    def _if_present(self, name: str, schema: Schema) -> Schema:
        return {"anyOf": [{"properties": {name: False}}, schema]}

    def _name_properties(self, out: dict[str, Any], names: Schema) -> None:
        """Raises ValueError."""
        if isinstance(names, dict) and isinstance(reference := names.get("$ref"), str):
            names = self._document.resolve(reference) or names
        keywords = names if isinstance(names, dict) else {}
        used = keywords.keys() - _ANNOTATIONS
        kinds = keywords.get("type", "string")
        if names is False or "string" not in (kinds if isinstance(kinds, list) else [kinds]):
            out |= {"properties": {}, "additionalProperties": False}
            out.pop("patternProperties", None)
            return
        used -= {"type"}
        if not used:
            return
        if "patternProperties" in out:
            raise ValueError("propertyNames cannot be combined with patternProperties")
        listed, other = out.get("properties", {}), out.get("additionalProperties", True)
        if used <= {"enum", "const"}:
            known = [keywords["const"]] if "const" in keywords else keywords["enum"]
            out["properties"] = {name: schema for name, schema in listed.items() if name in known}
            out["properties"] |= {n: other for n in known if isinstance(n, str) and n not in listed}
            out["additionalProperties"] = False
            return
        if listed:
            raise ValueError("propertyNames with a pattern or lengths cannot be combined with properties")
        if used == {"pattern"}:
            pattern = ascii_classes(keywords["pattern"])
        elif used <= {"minLength", "maxLength"}:
            most = keywords.get("maxLength", "")
            pattern = rf"^[\s\S]{{{int(keywords.get('minLength', 0))},{most and int(most)}}}$"
        else:
            raise ValueError("propertyNames may have type, const, enum, pattern, or lengths")
        out["patternProperties"] = {pattern: other}
        out["additionalProperties"] = False

    # ------------------------------------------------------------------------------ combinations

    def _conditions(self, out: dict[str, Any]) -> Iterator[Schema]:
        document = self._document
        condition, then, otherwise = (out.pop(key, None) for key in ("if", "then", "else"))
        if condition is not None and (then, otherwise) != (None, None):
            other = negation(document, condition)
            yes = {"allOf": [self.schema(condition), self.schema(True if then is None else then)]}
            no = {"allOf": [self.schema(other), self.schema(True if otherwise is None else otherwise)]}
            yield {"anyOf": [yes, no]} if other is not False else yes
        if "not" in out:
            other = negation(document, out.pop("not"))
            if other is False:
                raise ValueError("not is enforced only for types, values, bounds, and required properties")
            yield self.schema(other)
        if "oneOf" in out:
            alternatives: list[Schema] = out.pop("oneOf")
            yield {"anyOf": list(self._exactly_one(alternatives))}

    def _exactly_one(self, alternatives: list[Schema]) -> Iterator[Schema]:
        """Each alternative without the values of those that are not disjoint with it. Raises ValueError."""
        found = 0
        for mine, one in enumerate(alternatives):
            others = [
                negation(self._document, other)
                for k, other in enumerate(alternatives)
                if k != mine and not are_disjoint(self._document, one, other)
            ]
            if False not in others and one is not False:
                found += 1
                yield self.schema({"allOf": [one, *others]} if others else one)
        if not found:
            raise ValueError(
                "oneOf needs alternatives that differ by type, by a constant, or by a required property;"
                " use anyOf if a value may follow several"
            )

    def _references(self, out: dict[str, Any]) -> None:
        if not self._document.has_static_anchors:
            return
        if "$dynamicRef" in out and "$ref" not in out:
            out["$ref"] = out.pop("$dynamicRef")
        if "$dynamicAnchor" in out and "$anchor" not in out:
            out["$anchor"] = out.pop("$dynamicAnchor")


_REPLACED: Final = frozenset(
    {
        *("contains", "dependentSchemas", "dependencies", "else", "if", "not", "oneOf", "propertyNames"),
        "then",
    }
)
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "format", "$comment"})


def _subsets(values: list[Any]) -> list[tuple[Any, ...]]:
    return [c for size in range(len(values) + 1) for c in itertools.combinations(values, size)]
