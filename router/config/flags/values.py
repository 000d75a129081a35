"""A setting's value from text (a flag) or from a typed value (a YAML file, a keyword argument)."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from router.config.flags.aliases import OWN, translated, translates
from router.config.option import flag_name
from router.config.table import SETTINGS


class ConfigError(Exception):
    """The command line or the file is invalid. Every message names the flag, its value and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


_TRUTH: Final = {"true": True, "false": False}


def converter(type_: type) -> Callable[[str], object]:
    """For argparse, whose messages it raises. Choices are accepted in any case, and with underscores."""

    def convert(text: str) -> object:
        try:
            if type_ is bool:
                return _TRUTH[text.lower()]
            if issubclass(type_, Enum):
                return _member(type_, text)
            read: Callable[[str], object] = _whole_number if type_ is int else type_
            return read(text)
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {_expectation(type_)}") from None

    return convert


def _member(type_: type[Enum], text: str) -> Enum:
    """Raises ValueError."""
    word = text.lower()
    values = {member.value for member in type_}
    return type_(word if word in values else word.replace("_", "-"))


_FACTORS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""As in vLLM: 16k is 16,000, and 16K is 16,384."""
_SHORT: Final = re.compile(r"(-?\d{1,9}(?:\.\d{1,9})?)([kmgKMG])")


def _whole_number(text: str) -> int:
    """Raises ValueError."""
    if (found := _SHORT.fullmatch(text)) is None:
        return int(text)
    number = Fraction(found[1]) * _FACTORS[found[2]]
    if number.denominator != 1:
        raise ValueError(f"{text} is no whole number")
    return int(number)


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
            _member(type_, value)
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


@dataclass(frozen=True, slots=True)
class NamedSettings:
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by their names in `router.config.table.SETTINGS`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Flags of `router` by which others were given, with the names that the user knows."""
    unknown: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def named_settings(values: Mapping[str, object]) -> NamedSettings:
    """Settings of a YAML file, or keyword arguments of `baton.LLM`. Dashes and underscores mean the same.

    They become the words of a command line, so names of other servers are translated by the one table. A
    value of another type than the setting's is a problem.
    """
    words: list[str] = []
    unknown: list[str] = []
    problems: list[str] = []
    for key, value in values.items():
        name = key.replace("-", "_")
        flag = flag_name(name)
        is_text_of_another = isinstance(value, str) and translates(flag)  # such as dtype: half
        if name in SETTINGS and not is_text_of_another:
            try:
                text = checked_text(name, value)
            except ValueError as error:
                problems.append(f"{key}: {error}")
            else:
                words += [] if text is None else [f"{flag}={text}"]
        elif translates(flag):
            words.append(f"{flag}={str(value).lower() if isinstance(value, bool) else value}")
        else:
            unknown.append(key)
    line = translated(words)
    keys = {flag_name(key.replace("-", "_")): key for key in values}
    settings: dict[str, Any] = {}
    for word in line.words:
        setting = OWN[word.partition("=")[0]]
        try:
            settings[setting.name] = converter(setting.type)(word.partition("=")[2])
        except argparse.ArgumentTypeError as error:
            problems.append(f"{keys[line.names.get(setting.flag, setting.flag)]}: {error}")
    return NamedSettings(settings, line.names, unknown, problems + line.problems)
