"""Translates flags of other servers where they mean the same, and explains the others.

A pure function over the command line, called before argparse. The tables are `foreign_flags.TRANSLATIONS`.
Underscores are accepted for dashes (`--max_num_seqs`), as in vLLM and TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from router.config.foreign_flags import TRANSLATIONS, Renamed, Switch, Unavailable

__all__ = ["translated", "translates"]


def translated(argv: Sequence[str], own: frozenset[str]) -> tuple[list[str], list[str]]:
    """The command line in flags of `router`, and a message for each flag that has no equivalent.

    `own`: the flags of `router`, which are passed on as they are.
    """
    result: list[str] = []
    problems: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        flag = _normal(name)
        translation = TRANSLATIONS.get(flag)
        if flag in own and not (isinstance(translation, Renamed) and translation.flag == flag):
            translation = None  # a flag of ours, with only its values renamed
        match translation:
            case None:
                result.append(flag + equals + value if flag in own else word)
            case Unavailable(reason):
                problems.append(f"{name}: {reason}")
                _skip_values(words)
            case Switch(on, off):
                if not equals and words and words[0].lower() in _TRUTH:
                    value = words.pop(0)
                result += on if _TRUTH.get(value.lower(), True) else off
            case Renamed():
                if not equals and words and not words[0].startswith("--"):
                    value = words.pop(0)
                _rename(translation, name, value, result, problems)
    return result, problems


def translates(flag: str) -> bool:
    """Whether `flag`, with or without a value, is a flag of another server."""
    return _normal(flag.partition("=")[0]) in TRANSLATIONS


_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}


def _normal(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _rename(to: Renamed, name: str, value: str, result: list[str], problems: list[str]) -> None:
    match to.values.get(value, value):
        case Unavailable(reason):
            problems.append(f"{name} {value}: {reason}")
        case str(word):
            if word:
                result.append(f"{to.flag}={word}")


def _skip_values(words: list[str]) -> None:
    while words and not (words[0].startswith("-") and not _is_number(words[0])):
        words.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
