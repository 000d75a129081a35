"""Settings given by name with typed values: those of a YAML file, and the keyword arguments of `baton.LLM`.

They become the words of a command line, so names of other servers are translated by the one table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.config.flags.aliases import OWN, translated, translates
from router.config.flags.values import checked_text, converter
from router.config.option import flag_name
from router.config.table import SETTINGS

__all__ = ["NamedSettings", "named_settings"]


@dataclass(frozen=True, slots=True)
class NamedSettings:
    settings: dict[str, Any] = field(default_factory=dict)
    """By the names of `router.config.table.SETTINGS`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Flags of `router` by which others were given, with the names that the user knows."""
    unknown: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def named_settings(values: Mapping[str, object]) -> NamedSettings:
    """Dashes and underscores mean the same. A value of another type than the setting's is a problem."""
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
