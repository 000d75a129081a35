"""Draws the handoff's state machines into docs/handoff.md, from the tables that the code runs on.

`python scripts/state_diagrams.py`
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from pathlib import Path

from kv_transfer.handoff.receiver_states import RECEIVING
from kv_transfer.handoff.sender_states import SENDING
from kv_transfer.handoff.state_machine import Table

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "handoff.md"
END = "<!-- end of diagram -->"


def diagram(table: Table[Enum, Enum, Enum]) -> str:
    """Mermaid; an arrow for each pair of states, with its events and what they cause."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (state, event), (target, actions) in table.items():
        if state is not target or actions:  # events that change nothing and cause nothing are only noise
            arrows[state.name, target.name].append(_label(event, actions))
    (first, _), *_ = arrows
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR", f"    [*] --> {first}"]
    lines += [
        f"    {source} --> {target}: {'<br>'.join(labels)}" for (source, target), labels in arrows.items()
    ]
    ends = dict.fromkeys(target for _, target in arrows if all(target != source for source, _ in arrows))
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```", ""])


def with_diagrams(document: str) -> str:
    for name, table in (("sender", SENDING), ("receiver", RECEIVING)):
        begin = f"<!-- {name}: written by scripts/state_diagrams.py -->\n"
        before, _, rest = document.partition(begin)
        _, _, after = rest.partition(END)
        document = before + begin + diagram(table) + END + after  # type: ignore[arg-type]
    return document


def _label(event: Enum, actions: tuple[Enum, ...]) -> str:
    words = _words(event)
    return f"{words} / {', '.join(map(_words, actions))}" if actions else words


def _words(name: Enum) -> str:
    return name.name.lower().replace("_", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(with_diagrams(DOCUMENT.read_text()))
