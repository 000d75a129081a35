"""`router verify`: compute the answer of a receipt again, and say whether it is the same."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from router.api.generation.audit.receipts import Presented, ReceiptError
from router.command.audit.comparison import (
    Comparison,
    Computed,
    NotComparable,
    compare,
    prompt_of,
    receipts_in,
    request_of,
)
from router.command.audit.computing import Computer, add_computer_arguments, computer_of
from router.command.audit.outcome import Outcome, of_all

_SHORT: Final = 16
"""Characters of a digest that are printed."""


def run(argv: Sequence[str]) -> int:
    """The status is that of the worst receipt: a difference before one that cannot be compared."""
    arguments = make_parser().parse_args(argv)
    try:
        receipts = list(_read(arguments.file))
        prompt = None if arguments.prompt_ids is None else json.loads(arguments.prompt_ids.read_text())
        computer = computer_of(arguments)
    except (OSError, ValueError) as error:
        print(f"router verify: {error}", file=sys.stderr)
        return Outcome.NOT_COMPARABLE
    outcomes = set()
    for number, receipt in enumerate(receipts, 1):
        found = verified(receipt, computer, prompt)
        if arguments.json:
            print(json.dumps(found))
        else:
            print(*_lines(found, f"{number}: " if len(receipts) > 1 else ""), sep="\n")
        outcomes.add(Outcome[found["outcome"].upper()])
    if not receipts:
        print(f"router verify: {arguments.file} contains no receipt", file=sys.stderr)
        return Outcome.NOT_COMPARABLE
    return of_all(outcomes)


def verified(
    receipt: Mapping[str, Any], computer: Computer, prompt: Sequence[int] | None = None
) -> dict[str, Any]:
    """What is found, as JSON. `prompt`: token ids, for a receipt without them."""
    try:
        presented = Presented.read(receipt)
        tokens = prompt_of(presented, prompt)
        verdict = _verdict(presented, tokens, computer)
    except (NotComparable, ReceiptError) as error:
        return {"outcome": Outcome.NOT_COMPARABLE.label, "reason": str(error)}
    outcome = Outcome.EQUAL if verdict.is_equal else Outcome.DIFFERS
    found = {"outcome": outcome.label, **asdict(verdict)}
    difference = verdict.difference
    if difference is not None and difference.recorded is not None and difference.computed is not None:
        assert presented.tokens is not None
        before = [*tokens, *presented.tokens[: difference.position]]
        pair = difference.recorded, difference.computed
        found["logprobs"] = computer.logprobs(presented.receipt.model, before, pair)
    return found


def _verdict(presented: Presented, prompt: Sequence[int], computer: Computer) -> Comparison:
    """Raises NotComparable, ReceiptError."""
    altered = presented.changes()
    if "prompt" in altered:
        return Comparison(altered, {}, None, presented.receipt.output.count)
    # The salt keeps the KV of other requests out of it.
    body = request_of(presented, prompt) | {"receipt": True, "cache_salt": secrets.token_hex(8)}
    computed = Computed.of(computer.answer(body, presented.receipt.adapter))
    return compare(presented, prompt, computed)


def _lines(found: Mapping[str, Any], name: str) -> Iterator[str]:
    if "reason" in found:
        yield f"{name}cannot be compared: {found['reason']}"
        return
    if found["outcome"] == "equal":
        yield f"{name}equal: {found['tokens']} tokens"
        return
    yield f"{name}differs: {_where(found)}"
    for part in found["altered"]:
        yield f"  altered: {part} does not have its digest in the receipt"
    for field, (recorded, computed) in found["fields"].items():
        yield f"  {field}: {_short(recorded)} in the receipt, {_short(computed)} computed"


def _where(found: Mapping[str, Any]) -> str:
    difference = found["difference"]
    if difference is None:
        compared = "prompt" not in found["altered"]
        return f"the {found['tokens']} tokens are equal" if compared else "the prompt was changed"
    if not difference["known"]:
        return f"from the page at token {difference['position']} of {found['tokens']} on"
    logprobs = found.get("logprobs") or (None, None)
    pair = zip((difference["recorded"], difference["computed"]), logprobs, strict=True)
    recorded, computed = (_token(token, logprob) for token, logprob in pair)
    place = f"from token {difference['position']} of {found['tokens']} on"
    return f"{place}: {recorded} in the receipt, {computed} computed"


def _token(token: int | None, logprob: float | None) -> str:
    if token is None:
        return "the end"
    return str(token) if logprob is None else f"{token} (log-probability {logprob:.4f})"


def _short(value: Any) -> str:
    """Digests are cut."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_short, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(_short(part) for part in value.values() if part)
    return str(value)[:_SHORT] or "none"


def _read(file: Path) -> Iterator[Mapping[str, Any]]:
    """The receipts of a file of JSON, or of JSON lines. Raises ValueError."""
    text = sys.stdin.read() if file == Path("-") else file.read_text()
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        values = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if "{" in line]
    for value in values:
        yield from receipts_in(value)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router verify",
        description="Compute the answers of receipts again, and compare. Exit status: 0 equal, 1 different,"
        " 2 not comparable.",
    )
    parser.add_argument(
        "file", type=Path, help="receipts, or answers with receipts, as JSON or JSON lines; -: standard input"
    )
    parser.add_argument(
        "--prompt-ids", type=Path, metavar="FILE", help="token ids of the prompt, for receipts without tokens"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each receipt")
    add_computer_arguments(parser)
    return parser
