"""Request fields that constrain the output: those of OpenAI, vLLM and SGLang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engine.grammar.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from router.api.generation.params.constraint import Constraint
from router.api.generation.params.validation import RequestModel
from router.errors import InvalidRequest

MAX_CHOICES: Final = 4096

ANY_JSON_OBJECT: Final = '{"type":"object"}'
"""The JSON Schema of `json_object`."""

_BY_ALIAS: Final = ConfigDict(serialize_by_alias=True)


def _schema_text(value: Any) -> Any:
    """A JSON Schema as text, in its original order, which is the order of an object's properties."""
    if isinstance(value, str | None):
        return value
    if isinstance(value, dict) or value is True:
        return json.dumps(value, separators=(",", ":"))
    raise PydanticCustomError("json_schema", "Input should be a JSON Schema: an object or true, or its JSON")


_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_BYTES)]
SchemaText: TypeAlias = Annotated[
    _Text, BeforeValidator(_schema_text, json_schema_input_type=dict[str, Any] | Literal[True] | str)
]
_Choices: TypeAlias = Annotated[list[_Text], Field(min_length=1, max_length=MAX_CHOICES)]


class NamedSchema(RequestModel):
    model_config = _BY_ALIAS

    name: Annotated[str, Field(max_length=64)] = ""
    """No effect."""
    description: str | None = None
    """No effect: describe the format to the model in the prompt."""
    schema_: Annotated[SchemaText, Field(alias="schema")]
    strict: bool | None = None
    """No effect: every schema is enforced."""


class ResponseFormat(RequestModel):
    model_config = _BY_ALIAS

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    """With `json_schema` only."""

    @model_validator(mode="after")
    def _check_combination(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise InvalidRequest(
                "response_format.json_schema is for type json_schema, and needed there.",
                param="response_format.json_schema",
            )
        return self


class StructuredOutputs(RequestModel):
    """vLLM's constraints; exactly one is given."""

    model_config = _BY_ALIAS

    json_: Annotated[SchemaText | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = None
    """GBNF or Lark."""


class ConstrainedBody(RequestModel):
    """Constraints of the output.

    All fields except `response_format` are extensions; at most one may be given.
    """

    response_format: ResponseFormat | None = None
    """Text, any JSON object, or JSON of a schema: see structured_output.md."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's: one of json, json_object, regex, choice, grammar."""
    guided_json: SchemaText | None = None
    """vLLM's until 0.11: a JSON Schema."""
    guided_regex: _Text | None = None
    """vLLM's until 0.11: matches the whole output."""
    guided_choice: _Choices | None = None
    """vLLM's until 0.11: the output is one of these texts."""
    guided_grammar: _Text | None = None
    """vLLM's until 0.11: GBNF or Lark."""
    json_schema: SchemaText | None = None
    """SGLang's: a JSON Schema."""
    regex: _Text | None = None
    """SGLang's: matches the whole output."""
    ebnf: _Text | None = None
    """SGLang's: GBNF or Lark."""

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of these fields. Raises InvalidRequest if there are several."""
        constraints = list(self._constraints())
        if len(constraints) > 1:
            both = " and ".join(constraint.param for constraint in constraints[:2])
            raise InvalidRequest(
                f"{both} both constrain the output; at most one field may.", param=constraints[1].param
            )
        return constraints[0] if constraints else None

    def _constraints(self) -> Iterator[Constraint]:
        format = self.response_format
        if format is not None and format.type == "json_object":
            yield _constraint(GrammarKind.JSON_SCHEMA, ANY_JSON_OBJECT, "response_format")
        if format is not None and format.json_schema is not None:
            schema = format.json_schema.schema_
            yield _constraint(GrammarKind.JSON_SCHEMA, schema, "response_format.json_schema.schema")
        own = self.structured_outputs or StructuredOutputs()
        if own.json_object:
            yield _constraint(GrammarKind.JSON_SCHEMA, ANY_JSON_OBJECT, "structured_outputs.json_object")
        for kind, value, param in (
            (GrammarKind.JSON_SCHEMA, own.json_, "structured_outputs.json"),
            (GrammarKind.REGEX, own.regex, "structured_outputs.regex"),
            (GrammarKind.CHOICE, own.choice, "structured_outputs.choice"),
            (GrammarKind.EBNF, own.grammar, "structured_outputs.grammar"),
            (GrammarKind.JSON_SCHEMA, self.guided_json, "guided_json"),
            (GrammarKind.REGEX, self.guided_regex, "guided_regex"),
            (GrammarKind.CHOICE, self.guided_choice, "guided_choice"),
            (GrammarKind.EBNF, self.guided_grammar, "guided_grammar"),
            (GrammarKind.JSON_SCHEMA, self.json_schema, "json_schema"),
            (GrammarKind.REGEX, self.regex, "regex"),
            (GrammarKind.EBNF, self.ebnf, "ebnf"),
        ):
            if value is not None:
                yield _constraint(kind, value, param)


def json_constraint(schema: str, param: str) -> Constraint:
    """The constraint that the output is JSON of a schema; `param` is the field that it comes from."""
    return _constraint(GrammarKind.JSON_SCHEMA, schema, param)


def _constraint(kind: GrammarKind, value: str | list[str], param: str) -> Constraint:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return Constraint(Grammar(kind, text), param)
