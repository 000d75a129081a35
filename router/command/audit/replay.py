"""`router replay`: compute recorded requests again, and report where each answer differs first.

The log is what `router --record-requests` writes. An upgrade is judged by it: another version, mode, machine
or setting gives the same tokens, or the report says which not, and how near they were.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue
from statistics import median
from typing import Final

from router.api.media.marks import ImageSource
from router.command.audit.bodies import replay_of
from router.command.audit.comparison import Difference, RecordedAnswer, first_difference, presented_in
from router.command.audit.computing import Computer, add_computer_arguments, computer_of
from router.command.audit.outcome import NotComparable, Outcome, of_all

_GAPS: Final = (0.01, 0.1)
"""Bounds of the table of gaps between log-probabilities."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request of the log."""

    name: str
    arrival_s: float
    """After the first request of the log."""
    seconds: float
    answer: RecordedAnswer
    images: Sequence[ImageSource] = ()
    """Images of the prompt, in order."""


@dataclass(frozen=True, slots=True)
class Replayed:
    request: str
    outcome: str
    tokens: int
    seconds: float
    """From arrival to the last token: now, and as recorded."""
    recorded_seconds: float
    reason: str = ""
    """Why it cannot be compared."""
    difference: Difference | None = None
    gap: float | None = None
    """Log-probability of the token that was computed, less that of the recorded one; None: not known."""

    @property
    def equal_tokens(self) -> int:
        """Tokens before the first difference."""
        return self.tokens if self.difference is None else self.difference.position


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 if all answers are equal, 1 if some differ, 2 if others could not be compared."""
    arguments = make_parser().parse_args(argv)
    try:
        requests = read_log(arguments.log)
        computer = computer_of(arguments)
        with ExitStack() as stack:
            output = None if arguments.output is None else stack.enter_context(arguments.output.open("w"))
            found = []
            for each in replay(requests, computer, arguments.speed, arguments.concurrency):
                found.append(each)
                if output is not None:
                    output.write(json.dumps(asdict(each)) + "\n")
    except (OSError, ValueError) as error:
        print(f"router replay: {error}", file=sys.stderr)
        return Outcome.NOT_COMPARABLE
    print(*report(found), sep="\n")
    return of_all(Outcome[each.outcome.upper()] for each in found)


def read_log(files: Sequence[Path]) -> list[Recorded]:
    """Requests by their arrival. Raises OSError, ValueError for a line that is no record."""
    found: list[Recorded] = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                record = json.loads(line)
                images = [ImageSource(**image) for image in record.get("images", ())]
                answer, seconds = presented_in(record["answer"]), float(record["seconds"])
                found.append(Recorded(str(record["request"]), float(record["at"]), seconds, answer, images))
            except (ValueError, KeyError, TypeError, NotComparable) as error:
                raise ValueError(f"{file}, line {number} is no record of a request: {error!r}") from None
    if not found:
        raise ValueError("there are no requests in the log")
    found.sort(key=lambda request: request.arrival_s)
    began = found[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - began) for request in found]


def replay(
    requests: Sequence[Recorded],
    computer: Computer,
    speed: float,
    concurrency: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Replayed]:
    """Results in the order in which requests end. `speed`: of their arrivals; 0: as fast as `concurrency`
    allows."""
    queue, taking, began = iter(requests), threading.Lock(), clock()
    ended: Queue[Replayed | Exception] = Queue()

    def arrives(request: Recorded) -> None:
        if speed:
            sleep(max(0.0, began + request.arrival_s / speed - clock()))

    if computer.most_at_once == 1:
        for request in queue:
            arrives(request)
            yield replayed(request, computer, clock)
        return

    def work() -> None:
        while True:
            with taking:
                request = next(queue, None)
                if request is None:
                    return
                arrives(request)
            try:
                ended.put(replayed(request, computer, clock))
            except Exception as error:
                ended.put(error)

    for _ in range(min(concurrency, len(requests))):
        threading.Thread(target=work, daemon=True).start()
    for _ in requests:
        result = ended.get()
        if isinstance(result, Exception):
            raise result
        yield result


def replayed(request: Recorded, computer: Computer, clock: Callable[[], float]) -> Replayed:
    began, recorded = clock(), request.answer.tokens or ()
    try:
        body, adapter = replay_of(request.answer, request.images)
        tokens = computer.answer(body, adapter)["choices"][0]["token_ids"]
    except NotComparable as error:
        took = clock() - began, request.seconds
        return Replayed(request.name, Outcome.NOT_COMPARABLE.label, len(recorded), *took, reason=str(error))
    took, difference = (clock() - began, request.seconds), first_difference(recorded, tokens)
    if difference is None:
        return Replayed(request.name, Outcome.EQUAL.label, len(recorded), *took)
    gap = None
    if difference.recorded is not None and difference.computed is not None and not request.images:
        pair = difference.computed, difference.recorded
        before = [*body["prompt"], *recorded[: difference.position]]
        logprobs = computer.logprobs(body["model"], before, pair, adapter)
        gap = None if logprobs is None else logprobs[0] - logprobs[1]
    return Replayed(request.name, Outcome.DIFFERS.label, len(recorded), *took, "", difference, gap)


def report(found: Sequence[Replayed]) -> Iterator[str]:
    """Lines of text."""
    compared = [each for each in found if not each.reason]
    differing = [each for each in compared if each.difference is not None]
    left = len(found) - len(compared)
    yield (
        f"{len(found)} requests: {len(compared) - len(differing)} equal, {len(differing)} differ,"
        f" {left} cannot be compared"
    )
    if compared:
        tokens = sum(each.tokens for each in compared)
        equal = sum(each.equal_tokens for each in compared)
        yield f"tokens before the first difference: {equal:,} of {tokens:,}"
        now, then = (
            median(times) for times in zip(*((e.seconds, e.recorded_seconds) for e in compared), strict=True)
        )
        yield f"seconds a request, median: {now:.3f}, recorded {then:.3f}"
    if differing:
        yield "gap of log-probabilities at the first difference: " + ", ".join(_gaps(differing))
        for each in sorted(differing, key=lambda one: one.equal_tokens)[:10]:
            difference = each.difference
            assert difference is not None
            gap = "" if each.gap is None else f", gap {each.gap:+.4f}"
            yield (
                f"  {each.request}: token {difference.position} of {each.tokens}:"
                f" {_token(difference.recorded)} recorded, {_token(difference.computed)} computed{gap}"
            )
    for reason, count in Counter(each.reason for each in found if each.reason).most_common(10):
        yield f"  {count} × {reason}"


def _gaps(differing: Sequence[Replayed]) -> Iterator[str]:
    known = [abs(each.gap) for each in differing if each.gap is not None]
    below = 0
    for bound in _GAPS:
        count = sum(gap < bound for gap in known)
        yield f"below {bound:g}: {count - below}"
        below = count
    yield f"more: {len(known) - below}"
    if unknown := len(differing) - len(known):
        yield f"not known: {unknown}"


def _token(token: int | None) -> str:
    return "the end" if token is None else str(token)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router replay",
        description="Compute the requests of a log of --record-requests again, and report the first token of"
        " each that differs. Exit status: 0 all equal, 1 some differ, 2 others cannot be compared.",
    )
    parser.add_argument("log", type=Path, nargs="+", help="files that --record-requests wrote")
    parser.add_argument(
        "--speed",
        type=_at_least(0.0),
        default=0.0,
        metavar="FACTOR",
        help="of the recorded arrivals: 1 as recorded, 2 twice as fast; 0: as fast as possible (default)",
    )
    parser.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="concurrent requests (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write one JSON line for each request")
    add_computer_arguments(parser)
    return parser


def _at_least(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if (value := float(text)) < least:
            raise ValueError(text)
        return value

    return read
