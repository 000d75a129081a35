"""Regular expressions of JSON Schemas: ECMA 262's classes, Decimal's look-ahead, and formats."""

from __future__ import annotations

import re
from typing import Final

_SPACE: Final = r"\t\n\x0B\x0C\r\x20\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_CLASSES: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}

_DAY: Final = (
    r"(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
)
_YEAR: Final = r"([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR: Final = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = rf"({_YEAR}-({_DAY})|{_LEAP_YEAR}-02-29)"
_TIME: Final = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
FORMATS: Final = {
    "date": (f"^{_DATE}$",),
    "time": (f"^{_TIME}$",),
    "date-time": (f"^{_DATE}[Tt]{_TIME}$",),
    "hostname": (
        r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*$",
        r"^[^.]{1,63}(\.[^.]{1,63}){0,3}$",
    ),
}
"""Patterns of formats, all of which a string matches: 29 February in leap years only, no leap seconds, no
punycode, host names of at most four labels."""
BUILT_IN: Final = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that the library enforces; all others are annotations, as JSON Schema has it."""

_LOOK_AHEAD: Final = re.compile(r"\^\(\?!\^(\[[^\]\\]+\])\*\$\)")
_DIGITS: Final = re.compile(
    r"\(\?:\\d\{0,(\d+)\}\|\(\?=\[\\d\.\]\{1,(\d+)\}0\*\$\)\\d(\*|\{0,\d+\})\\\.\\d(\*|\{0,(\d+)\})0\*\$\)$"
)


def ascii_classes(pattern: str) -> str:
    r"""`pattern` with ECMA 262's meaning of \d, \w and \s, which is not Unicode's, spelled out."""
    out, in_class, at = [], False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            escaped = pattern[at + 1]
            at += 2
            members = _CLASSES.get(escaped.lower())
            if members is None:
                out.append(char + escaped)
            elif escaped.isupper():
                out.append(f"[^{members}]")
            else:
                out.append(members if in_class else f"[{members}]")
            continue
        if char == "[" and not in_class:
            in_class = True
        elif char == "]" and in_class and pattern[at - 1] != "[" and pattern[at - 2 : at] != "[^":
            in_class = False
        out.append(char)
        at += 1
    return "".join(out)


def without_look_ahead(pattern: str) -> list[str]:
    """Patterns that together match what pydantic's pattern of a Decimal does; `[pattern]` for any other.

    It has two look-aheads: there must be a digit, and no more than `max_digits` before trailing zeros.
    """
    parts = [pattern]
    if found := _LOOK_AHEAD.match(pattern):
        members = found.group(1)[1:-1]
        parts = ["^" + pattern[found.end() :], f"[^{members}]"]
    if found := _DIGITS.search(parts[0]):
        whole, most, before, after = int(found[1]), int(found[2]) - 1, found[3], found[5]
        if before == "*":
            rest = "|".join(rf"\d{{0,{k}}}\.\d{{0,{most - k}}}" for k in range(most + 1))
        else:
            rest = rf"\d{before}\.\d{{0,{min(int(after or 0), most)}}}"
        parts[0] = parts[0][: found.start()] + rf"(?:\d{{0,{whole}}}|(?:{rest})0*)$"
    return parts


def anything_but(words: list[str]) -> str:
    """A pattern of all strings except `words`, from their tree of prefixes: as large as they are."""
    return f"^(?:{_not_in(sorted(set(words)))})$"


def _not_in(words: list[str]) -> str:
    firsts = sorted({word[0] for word in words if word})
    others = "".join(f"\\u{{{ord(first):X}}}" for first in firsts)
    branches = [f"[^{others}][\\s\\S]*" if firsts else r"[\s\S]+"]
    for first in firsts:
        rest = _not_in([word[1:] for word in words if word.startswith(first)])
        branches.append(f"\\u{{{ord(first):X}}}(?:{rest})")
    if "" not in words:
        branches.append("")
    return "|".join(branches)
