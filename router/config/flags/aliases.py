"""Translates flags of other servers where they mean the same, and explains the others.

A pure function over the command line, called before argparse. The tables are `foreign_flags.TRANSLATIONS`.
Underscores are accepted for dashes (`--max_num_seqs`), as in vLLM and TensorRT-LLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.config.flags.foreign_flags import (
    TRANSLATIONS,
    Fields,
    Renamed,
    Switch,
    Translation,
    UnavailableFlag,
)
from router.config.table import SETTINGS

OWN: Final = {setting.flag: setting for setting in SETTINGS.values()}
"""The flags of `router`."""


@dataclass(slots=True)
class Translated:
    words: list[str] = field(default_factory=list)
    """The command line in flags of `router`."""
    problems: list[str] = field(default_factory=list)
    """One for each flag without an equivalent, and for each that contradicts another."""
    names: dict[str, str] = field(default_factory=dict)
    """Flags of `router` by which others were given, with the names that the user knows."""
    _given: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Flags of `router`, each with the name and the value that were given last."""
    _included: dict[tuple[str, str], str] = field(default_factory=dict)
    """Flags of `router` with a value that another setting of the flag, the value here, includes."""

    def add(self, name: str, flag: str, value: str) -> None:
        """`name` sets `flag`. A flag that is repeated under its own name overrides itself, as in argparse."""
        value = self._whole(flag, value)
        before, earlier = self._given.get(flag, (name, value))
        earlier = self._whole(flag, earlier)
        if before != name and earlier != value:
            self.problems.append(
                f"{before} {earlier} and {name} {value} are one setting here, {flag}; give one of them"
            )
        self._given[flag] = (name, value)
        if name != flag:
            self.names[flag] = name

    def include(self, flag: str, part: str, whole: str) -> None:
        """`flag part` is no contradiction of `flag whole`, which is meant where both are given."""
        self._included[flag, part] = whole

    def _whole(self, flag: str, value: str) -> str:
        return self._included.get((flag, value.lower()), value)

    def overrides(self) -> list[str]:
        """The settings that include others, to follow them on the command line."""
        return [f"{flag}={whole}" for (flag, _), whole in self._included.items()]


def translated(argv: Sequence[str]) -> Translated:
    """Words that are neither flags of `router` nor of another server are passed on as they are."""
    result = Translated()
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        flag = _normal(name)
        match _meaning(flag):
            case None:
                result.words.append(flag + equals + value if flag in OWN else word)
                if flag in OWN:
                    result.add(flag, flag, value if equals else _value(words))
            case UnavailableFlag(reason):
                result.problems.append(f"{name}: {reason}")
                _skip_values(words)
            case Switch() as switch:
                if not equals and words and words[0].lower() in _TRUTH:
                    value = words.pop(0)
                _switch(switch, name, value, result)
            case Renamed() as renamed:
                if not equals and words and not words[0].startswith("--"):
                    value = words.pop(0)
                _rename(renamed, name, value, result)
            case Fields() as known:
                given = value if equals else words.pop(0) if words else ""
                if part := _part(flag):
                    _field(known, flag.removesuffix(f".{part}"), part, given, result)
                else:
                    _spread(known, name, given, result)
    result.words += result.overrides()
    return result


def _meaning(flag: str) -> Translation | None:
    """None: nothing to translate."""
    whole = TRANSLATIONS.get(flag.partition(".")[0])
    if _part(flag) and isinstance(whole, Fields | UnavailableFlag):
        return whole
    translation = TRANSLATIONS.get(flag)
    own = OWN.get(flag)
    if own is None or (isinstance(translation, Renamed) and translation.flag == flag):
        return translation  # of another server, or a flag of ours of which only the values are renamed
    return Switch(on=(f"{flag}=true",), off=(f"{flag}=false",)) if own.type is bool else None


def _part(flag: str) -> str:
    """`method` of vLLM's `--speculative-config.method`; empty for most flags."""
    return flag.partition(".")[2]


def translates(flag: str) -> bool:
    """Whether `flag`, with or without a value, is a flag of another server."""
    return _normal(flag.partition("=")[0]) in TRANSLATIONS


def as_given(problem: str, names: Mapping[str, str]) -> str:
    """A message about flags of `router`, with the names by which they were given."""
    notes = [f"{name} is {flag} here" for flag, name in names.items() if _mentions(problem, flag)]
    return f"{problem} ({', '.join(notes)})" if notes else problem


_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}


def _normal(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _value(words: Sequence[str]) -> str:
    """The value of a flag that these words follow; empty for a flag without one."""
    return words[0] if words and not words[0].startswith("--") else ""


def _switch(to: Switch, name: str, value: str, result: Translated) -> None:
    if value.lower() not in {"", *_TRUTH}:
        result.problems.append(f"{name} {value}: it takes no value, or true or false")
        return
    is_on = _TRUTH.get(value.lower(), True)
    words = to.on if is_on else to.off
    if isinstance(words, UnavailableFlag):
        result.problems.append(f"{name} {value}: {words.reason}")
        return
    result.words += words
    for included in to.includes if is_on else ():
        flag, _, part = included.partition("=")
        (whole,) = (word.partition("=")[2] for word in words if word.startswith(f"{flag}="))
        result.include(flag, part, whole)
    for word in words:
        flag, _, setting = word.partition("=")
        result.add(flag if _normal(name) == flag else name, flag, setting)


def _rename(to: Renamed, name: str, value: str, result: Translated) -> None:
    if not value:
        result.problems.append(f"{name} needs a value")
        return
    match to.values.get(value, value):
        case UnavailableFlag(reason):
            result.problems.append(f"{name} {value}: {reason}")
        case str(word):
            if word and to.flag:
                result.words.append(f"{to.flag}={word}")
                result.add(name if _normal(name) != to.flag else to.flag, to.flag, word)


def _spread(to: Fields, name: str, value: str, result: Translated) -> None:
    try:
        given = json.loads(value)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        result.problems.append(f"{name} {value}: it takes a JSON object")
        return
    for field_name, setting in given.items():
        _field(to, name, field_name, str(setting), result)


def _field(to: Fields, name: str, field_name: str, value: str, result: Translated) -> None:
    if (renamed := to.fields.get(field_name.replace("-", "_"))) is None:
        result.problems.append(f"{name}: {field_name} has no equivalent; use {', '.join(to.fields)}")
    else:
        _rename(renamed, f"{name} {field_name}", value, result)


def _mentions(problem: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){flag}(?![\w-])", problem) is not None


def _skip_values(words: list[str]) -> None:
    while words and not (words[0].startswith("-") and not _is_number(words[0])):
        words.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
