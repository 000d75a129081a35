"""Remainders that the lexer of a JSON Schema has a state for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal

from engine.grammar.json_schema.document import Document, Schema, children, relevant


def divisors_of(text: str) -> Iterator[int]:
    """For each schema with `multipleOf`: the digits of the least number that all divide which apply with it.

    Those of the schema itself, of its `allOf`, and of what these refer to. Each remainder is a lexer state.
    """
    document = Document(json.loads(text))
    left: list[Schema] = [document.root]
    while left:
        schema = left.pop()
        if isinstance(schema, dict):
            left += children(schema)
            if divisors := list(_applied(document, schema)):
                yield _least_multiple(divisors)


def _applied(document: Document, schema: Schema) -> Iterator[float]:
    """Each `multipleOf` that a value of `schema` must satisfy."""
    left: list[Schema | None] = [schema]
    seen: set[int] = set()
    while left:
        part = left.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        if "multipleOf" in relevant(part):
            yield part["multipleOf"]
        left += part.get("allOf", ())
        if "$ref" in part:
            left.append(document.resolve(part["$ref"]))


def _least_multiple(divisors: list[float]) -> int:
    """Digits of the least common multiple: 125 for 0.125, 125 for 12.5, 70 for 0.5 and 7."""
    numbers = [abs(Decimal(str(divisor))) for divisor in set(divisors)]
    if len(numbers) == 1:
        return int("".join(map(str, numbers[0].as_tuple().digits)))
    places = max(-int(number.as_tuple().exponent) for number in numbers)
    return math.lcm(*(int(number.scaleb(max(places, 0))) for number in numbers))
