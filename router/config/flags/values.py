"""A setting's value from text (a flag) or from a typed value (a YAML file, a keyword argument)."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from router.config.table import SETTINGS

__all__ = ["checked_text", "choices", "converter", "did_you_mean"]

_TRUTH: Final = {"true": True, "false": False}


def converter(type_: type) -> Callable[[str], object]:
    """For argparse, whose messages it raises. Choices are accepted in any case."""

    def convert(text: str) -> object:
        try:
            if type_ is bool:
                return _TRUTH[text.lower()]
            return type_(text.lower() if issubclass(type_, Enum) else text)
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {_expectation(type_)}") from None

    return convert


def checked_text(name: str, value: object) -> str | None:
    """`value` of the setting as the text of its flag; None: its default is None, and so is `value`.

    Stricter than text: `1` is accepted for a float, but neither `1.5` nor `true` nor `"1"` for an int.
    Raises ValueError.
    """
    type_ = SETTINGS[name].type
    if value is None and SETTINGS[name].default is None:
        return None
    if isinstance(value, Enum) and isinstance(value, type_):
        return str(value.value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if issubclass(type_, Enum) and isinstance(value, str):
        try:
            type_(value.lower())
        except ValueError:
            raise ValueError(f"{value!r} is not {_expectation(type_)}") from None
        return text
    fits = {float: (float, int), str: (str, int)}.get(type_, (type_,))
    if type(value) not in fits:
        raise ValueError(f"{value!r} is not {_expectation(type_)}")
    return text


def choices(type_: type) -> list[str]:
    return [str(member.value) for member in type_] if issubclass(type_, Enum) else []


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "; see router --help") -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def _expectation(type_: type) -> str:
    if issubclass(type_, Enum):
        return "one of " + ", ".join(choices(type_))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(type_, "text")
