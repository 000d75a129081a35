"""The grammar of forced calls in the model's own format, from the format's data and the tools' schemas."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.grammar.json_schema.document import Document, relocated
from router.api.generation.forced.call_texts import (
    CallTexts,
    GemmaArguments,
    JsonArguments,
    PythonArguments,
    TaggedArguments,
)
from router.api.generation.forced.lark import LarkRules, OptionalPiece, either, quoted
from router.api.generation.forced.string_values import Literal, Looks, Unwritable, strings_of
from router.api.generation.output.calls.argument_values import found_in, types_of
from router.api.generation.tools import Tool

_KEY: Final = re.compile(r"[\w.$-]+", re.ASCII)
_NOT_BY_PROPERTY: Final = frozenset(
    {
        *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("patternProperties", "unevaluatedProperties"),
    }
)
"""Keywords about an object that a list of its properties does not enforce."""
_TYPELESS: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "not", "if", "enum", "const"})
_NO_STRING: Final = ["object", "array", "number", "boolean", "null"]
_NOT_IN_ARRAYS: Final = frozenset({"prefixItems", "contains", "uniqueItems", "unevaluatedItems"})
_DEPTH: Final = 16


class CallGrammar:
    """Rules of calls of one format."""

    def __init__(self, texts: CallTexts, rules: LarkRules) -> None:
        self._texts: Final = texts
        self._rules: Final = rules

    def calls(self, tools: Sequence[Tool], *, several: bool) -> str:
        """The source of one call or several of any of `tools`. Raises Unwritable."""
        texts, rules = self._texts, self._rules
        call = rules.rule(" | ".join(self._call(tool) for tool in tools))
        more = f" ({rules.fixed(texts.between)} {call})*" if several and texts.between is not None else ""
        return f"{rules.fixed(texts.begin)} {call}{more} {rules.fixed(texts.end)}"

    def _call(self, tool: Tool) -> str:
        texts, rules = self._texts, self._rules
        if not _KEY.fullmatch(tool.name):
            raise Unwritable(f"the name {tool.name}")
        try:
            Document(dict(tool.parameters))
        except ValueError as error:  # told by the check of the grammar in JSON
            raise Unwritable(f"a wrong schema: {error}") from error
        number = r'":" /[0-9]{1,3}/' if texts.numbered else '""'
        return (
            f"({rules.fixed(texts.before)} {quoted(tool.name)} {number} {rules.fixed(texts.named)}"
            f" {self._arguments(tool)} {rules.fixed(texts.after)})"
        )

    def _arguments(self, tool: Tool) -> str:
        match self._texts.arguments:
            case JsonArguments():
                return self._rules.json({**tool.parameters, "type": "object"})
            case PythonArguments():
                if not all(map(_is_identifier, tool.name.split("."))):
                    raise Unwritable(f"the name {tool.name}")
                return self._python(tool)
            case TaggedArguments() as tags:
                return " ".join(self._tagged(tool, tags)) or '""'
            case GemmaArguments() as style:
                return GemmaValues(self._rules, style, tool.parameters).fields(tool.parameters, _DEPTH)

    def _python(self, tool: Tool) -> str:
        options = []
        for key, required in _properties(tool.parameters):
            if not _is_identifier(key):
                raise Unwritable(f"the argument {key}")
            value = self._rules.json(_property(tool.parameters, key))
            options.append(OptionalPiece(f"{quoted(key + '=')} {value}", required))
        return self._rules.separated(options, ", ")

    def _tagged(self, tool: Tool, tags: TaggedArguments) -> Iterator[str]:
        rules = self._rules
        for key, required in _properties(tool.parameters):
            opened = rules.fixed(f"{tags.before_key}{key}{tags.after_key}{tags.pad}")
            argument = f"({opened} {self._value(tool, key, tags)} {rules.fixed(tags.after)})"
            yield argument if required else f"{argument}?"

    def _value(self, tool: Tool, key: str, tags: TaggedArguments) -> str:
        """A value up to and with its end, by the types with which it is read."""
        rules, types = self._rules, types_of(tool, key)
        schema, end = tool.parameters["properties"][key], rules.fixed(tags.pad + tags.value_end)
        if "string" in types:
            ways = list(
                _texts(rules, strings_of(schema, tool.parameters, Looks()), tags.value_end, pad=tags.pad)
            )
            ways += [f'"null" {end}'] if "null" in types else []
            if not ways:
                raise Unwritable(f"the argument {key}")
            return either(ways)
        if not types:
            # Read as JSON, and as a string where it is none: a string that is JSON has no spelling.
            values = _listed(schema)
            if values is None and isinstance(schema, Mapping) and schema.keys() & _TYPELESS:
                raise Unwritable(f"the argument {key}, whose type the schema does not say")
            if values is not None and any(isinstance(value, str) for value in values):
                raise Unwritable(f"the argument {key}, which may be a string or another value")
            schema = _property(tool.parameters, key)
            return f"{self._rules.json({**schema, 'type': _NO_STRING} if values is None else schema)} {end}"
        return f"{self._rules.json(_property(tool.parameters, key))} {end}"


class GemmaValues:
    """Values of one tool in Gemma's syntax. Raises Unwritable."""

    def __init__(self, rules: LarkRules, style: GemmaArguments, root: Mapping[str, Any]) -> None:
        self._rules: Final = rules
        self._style: Final = style
        self._root: Final = root
        self._looks: Final = Looks()

    def fields(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties", {})
        options = [
            OptionalPiece(f"{quoted(key + ':')} {self.value(properties[key], depth - 1)}", required)
            for key, required in _properties(schema)
        ]
        return f'"{{" {self._rules.separated(options, ",")} "}}"'

    def value(self, schema: Any, depth: int) -> str:
        self._looks.spend()
        if not depth or not isinstance(schema, Mapping):
            raise Unwritable("a value of any type")
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(found_in(self._root, reference), depth - 1)
        if (ways := schema.get("anyOf", schema.get("oneOf"))) is not None:
            return either([self.value(way, depth - 1) for way in ways])
        if (values := _listed(schema)) is not None:
            if any(isinstance(value, list | dict) for value in values):
                raise Unwritable("a listed value that is no scalar")
            return either([self._constant(value) for value in values])
        kinds = schema.get("type")
        if kinds is None:
            raise Unwritable("a value of any type")
        each = kinds if isinstance(kinds, list) else [kinds]
        return either([self._kind(kind, schema, depth) for kind in each])

    def _kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        quote = quoted_by(self._rules, self._style)
        match kind:
            case "string":
                found = _texts(
                    self._rules,
                    strings_of({**schema, "type": "string"}, self._root, self._looks),
                    self._style.quote,
                    without=(self._style.call_end,),
                )
                return f"{quote} {either(list(found))}"
            case "object":
                return self.fields(schema, depth)
            case "array":
                return self._array(schema, depth)
            case _:
                return self._rules.json({**schema, "type": kind})

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        if schema.keys() & _NOT_IN_ARRAYS:
            raise Unwritable("an array with such items")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        most = None if most is None else int(most)
        if most == 0:
            return '"[" "]"'
        item = self._rules.rule(self.value(schema.get("items", True), depth - 1))
        more = f'("," {item}){{{max(0, least - 1)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _constant(self, value: object) -> str:
        if isinstance(value, str):
            if self._style.quote in value or self._style.call_end in value:
                raise Unwritable("a text that holds a marker")
            quote = quoted_by(self._rules, self._style)
            return f"({quote} {quoted(value)} {quote})"
        return quoted(json.dumps(value))


def quoted_by(rules: LarkRules, style: GemmaArguments) -> str:
    return rules.fixed(style.quote)


def _texts(
    rules: LarkRules, strings: Iterator[Any], end: str, *, pad: str = "", without: Sequence[str] = ()
) -> Iterator[str]:
    for string in strings:
        if isinstance(string, Literal):
            if end in string.text or any(word in string.text for word in without):
                raise Unwritable("a text that holds a marker")
            yield f"({quoted(string.text)} {rules.fixed(pad + end)})"
        else:
            yield rules.text(end, regex=string.regex, without=without, pad=pad)


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Keys in their order, and whether each is required. Raises Unwritable if the object needs more."""
    if found := sorted(schema.keys() & _NOT_BY_PROPERTY):
        raise Unwritable(f"{found[0]} of an object")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if set(required) - properties.keys():
        raise Unwritable("a required argument without a schema")
    for key, value in properties.items():
        if not _KEY.fullmatch(key):
            raise Unwritable(f"the argument {key}")
        if value is not False:
            yield key, key in required


def _property(root: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema of an argument as a document of its own."""
    schema = root["properties"][key]
    if not isinstance(schema, Mapping):
        return {}
    if '"$ref"' not in json.dumps(schema):
        return dict(schema)
    pointer = key.replace("~", "~0").replace("/", "~1")
    whole = relocated(dict(root), "#/$defs/tool")
    return {"$ref": f"#/$defs/tool/properties/{pointer}", "$defs": {"tool": whole}}


def _listed(schema: Any) -> list[Any] | None:
    """The values of an enumeration; None: it is none."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _is_identifier(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
