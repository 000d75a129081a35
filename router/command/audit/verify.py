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
from router.api.media.marks import ImageSource
from router.command.audit.bodies import AnswerPart, parts_of, prompt_of, request_of
from router.command.audit.comparison import Comparison, Computed, compare, receipts_in
from router.command.audit.computing import Computer, add_computer_arguments, computer_of
from router.command.audit.outcome import NotComparable, Outcome, of_all
from router.command.audit.request_images import images_of_body

_ALTERED: Final = {
    "prompt": "prompt does not have its digest",
    "output": "output does not have its digest",
    "pages": "pages are not the chain over namespace, media, adapter, prompt and output",
    "receipt": "receipt does not have its digest",
}
_SHORT: Final = 16
"""Characters of a digest that are printed."""


def run(argv: Sequence[str]) -> int:
    """The status is that of the worst receipt: a difference before one that cannot be compared."""
    arguments = make_parser().parse_args(argv)
    try:
        receipts = list(_read(arguments.file))
        prompt = None if arguments.prompt_ids is None else json.loads(arguments.prompt_ids.read_text())
        images = () if arguments.request is None else images_of_body(arguments.request.read_bytes())
        computer = computer_of(arguments)
    except (OSError, ValueError) as error:
        print(f"router verify: {error}", file=sys.stderr)
        return Outcome.NOT_COMPARABLE
    outcomes = set()
    for number, receipt in enumerate(receipts, 1):
        found = verified(receipt, computer, prompt, images)
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
    receipt: Mapping[str, Any],
    computer: Computer,
    prompt: Sequence[int] | None = None,
    images: Sequence[ImageSource] = (),
) -> dict[str, Any]:
    """What is found, as JSON. `prompt`: token ids, for a receipt without them. `images`: of the prompt."""
    try:
        presented = Presented.read(receipt)
        tokens = prompt_of(presented, prompt)
        verdict = _verdict(presented, tokens, computer, images)
    except (NotComparable, ReceiptError) as error:
        return {"outcome": Outcome.NOT_COMPARABLE.label, "reason": str(error)}
    outcome = Outcome.PARTLY_EQUAL if verdict.unchecked else Outcome.EQUAL
    outcome = outcome if verdict.is_equal else Outcome.DIFFERS
    found = {"outcome": outcome.label, **asdict(verdict)}
    difference = verdict.difference
    one = presented.receipt
    if difference is None or one.media or presented.tokens is None:
        return found
    if difference.recorded is not None and difference.computed is not None:
        before = [*tokens, *presented.tokens[: difference.position]]
        pair = difference.recorded, difference.computed
        found["logprobs"] = computer.logprobs(one.model, before, pair, one.adapter)
    return found


def _verdict(
    presented: Presented, prompt: Sequence[int], computer: Computer, images: Sequence[ImageSource]
) -> Comparison:
    """Compare the last part of the answer whose weights are served. Raises NotComparable, ReceiptError."""
    altered = presented.changes()
    if "prompt" in altered:
        return Comparison(altered, {}, None, presented.receipt.output.count, 0)

    def compute(part: AnswerPart) -> Computed:
        # The salt keeps the KV of other requests out of it.
        body = request_of(presented, prompt, part, images)
        body |= {"receipt": True, "cache_salt": secrets.token_hex(8)}
        return Computed.of(computer.answer(body, presented.receipt.adapter))

    parts = parts_of(presented.receipt)
    part, computed = parts[-1], compute(parts[-1])
    (weights,) = computed.receipt.weights
    served = [each for each in parts if each.weights.digest == weights.digest]
    if served and served[-1] is not part:
        part, computed = served[-1], compute(served[-1])
    return compare(presented, prompt, parts, part, computed, renamed=computer.renames)


def _lines(found: Mapping[str, Any], name: str) -> Iterator[str]:
    if "reason" in found:
        yield f"{name}cannot be compared: {found['reason']}"
        return
    match found["outcome"]:
        case "equal":
            yield f"{name}equal: {found['tokens']} tokens"
        case "partly_equal":
            yield f"{name}partly equal: {found['checked']} of {found['tokens']} tokens"
        case _:
            yield f"{name}differs: {_where(found)}"
    for part in found["altered"]:
        yield f"  altered: {_ALTERED[part]}"
    for field, (recorded, computed) in found["fields"].items():
        yield f"  {field}: {_short(recorded)} in the receipt, {_short(computed)} computed"
    for each in found["unchecked"]:
        yield f"  not checked: {each['what']}: {each['reason']}"


def _where(found: Mapping[str, Any]) -> str:
    difference = found["difference"]
    if difference is None:
        compared = "prompt" not in found["altered"]
        return f"the {found['checked']} tokens are equal" if compared else "the prompt was changed"
    if not difference["known"]:
        return f"output, from the page at token {difference['position']} of {found['tokens']} on"
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
    parser.add_argument(
        "--request",
        type=Path,
        metavar="FILE",
        help="body of the request, for receipts of prompts with images",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each receipt")
    add_computer_arguments(parser)
    return parser
