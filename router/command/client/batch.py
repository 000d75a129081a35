"""`router batch`: a file of requests in, a file of answers out, in the format of OpenAI's Batch API.

Requests that failed or were refused go to the error file, and are sent again by the next run with the same
files. A request that is refused for load (429, 503), or whose connection breaks, is sent again after the
router's Retry-After.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from router.command.client.api import ApiClient, ApiError, Unreachable, add_api_arguments, api_of
from router.command.client.batch_files import (
    BadInput,
    BatchRequest,
    ResultFile,
    check_paths,
    finished_ids,
    forget_failures,
    pending,
    read_requests,
    result_line,
)

_LATER: Final = frozenset({408, 429, 502, 503, 504})
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    line: dict[str, Any]
    ok: bool
    output_tokens: int = 0


class Sender:
    """Sends one request until it has an answer, or `max_attempts` have failed. Thread-safe."""

    def __init__(
        self, api: ApiClient, max_attempts: int, pause: Callable[[float], object] = time.sleep
    ) -> None:
        """`pause(seconds)` waits."""
        self._api = api
        self._max_attempts = max_attempts
        self._pause = pause

    def send(self, request: BatchRequest) -> BatchOutcome:
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, self._max_attempts + 1):
            is_last = attempt == self._max_attempts
            try:
                body = self._api.post(request.url, request.body)
            except ApiError as error:
                if is_last or error.status not in _LATER:
                    return BatchOutcome(
                        result_line(request, error.status, error.body, error.request_id), ok=False
                    )
                pause_s = max(pause_s, error.retry_after_s or 0.0)
            except Unreachable as error:
                if is_last:
                    return BatchOutcome(result_line(request, None, None, error=str(error)), ok=False)
            else:
                tokens = body.get("usage", {}).get("completion_tokens", 0)
                return BatchOutcome(
                    result_line(request, 200, body, body["id"]), ok=True, output_tokens=tokens
                )
            self._pause(min(pause_s, _LONGEST_PAUSE_S) * random.uniform(1.0, 1.5))
            pause_s *= 2
        raise ValueError("max_attempts must be at least 1")


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 if every request has an answer, 1 if some failed, 2 for invalid files."""
    arguments = make_parser().parse_args(argv)
    errors = arguments.errors or _errors_beside(arguments.output)
    try:
        check_paths(input=arguments.input, output=arguments.output, errors=errors)
        api = api_of(arguments)
        requests = read_requests(arguments.input)
        done = finished_ids(arguments.output)
        forget_failures(errors)
        left = list(pending(requests, done))
        with ResultFile(arguments.output) as results, ResultFile(errors) as failures:
            failed = _send_all(api, left, len(requests), arguments, results, failures)
    except (BadInput, ValueError) as error:
        print(f"router batch: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"router batch: {where}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("router batch: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    if failed:
        print(f"router batch: {failed} of {len(requests)} requests failed: see {errors}", file=sys.stderr)
    return 1 if failed else 0


def _errors_beside(output: Path) -> Path:
    """A name of its own for each output: out.errors.jsonl for out.jsonl."""
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def _send_all(
    api: ApiClient,
    requests: Sequence[BatchRequest],
    total: int,
    arguments: argparse.Namespace,
    results: ResultFile,
    failures: ResultFile,
) -> int:
    """How many failed."""
    failed = tokens = 0
    with _bars(Console(stderr=True)) as bars:
        bar = bars.add_task("requests", total=total, completed=total - len(requests), note="")
        for outcome in _outcomes(Sender(api, arguments.max_attempts), requests, arguments.concurrency):
            (results if outcome.ok else failures).write(outcome.line)
            failed += not outcome.ok
            tokens += outcome.output_tokens
            note = f"{tokens:,} tokens written" + (f", {failed} failed" if failed else "")
            bars.update(bar, advance=1, note=note)
    return failed


def _outcomes(sender: Sender, requests: Sequence[BatchRequest], concurrency: int) -> Iterator[BatchOutcome]:
    """Outcomes in the order in which requests end, at most `concurrency` at a time.

    An interruption does not wait: the threads are daemons, and the router aborts requests of closed
    connections.
    """
    queue, taking = iter(requests), threading.Lock()
    ended: Queue[BatchOutcome | Exception] = Queue(maxsize=concurrency)

    def work() -> None:
        while True:
            with taking:
                request = next(queue, None)
            if request is None:
                return
            try:
                ended.put(sender.send(request))
            except Exception as error:
                ended.put(error)

    for _ in range(min(concurrency, len(requests))):
        threading.Thread(target=work, daemon=True).start()
    for _ in requests:
        outcome = ended.get()
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router batch",
        description="Send a file of requests (OpenAI's Batch API format) to a running router. "
        "After an interruption, run it again: requests with a result are not sent again.",
    )
    parser.add_argument("input", type=Path, help="JSON lines with custom_id, method, url and body")
    parser.add_argument("output", type=Path, help="file to which results are appended")
    parser.add_argument(
        "--errors",
        type=Path,
        metavar="FILE",
        help="file of failed requests (default: out.errors.jsonl for an output out.jsonl)",
    )
    parser.add_argument(
        "--concurrency",
        type=_positive,
        default=64,
        metavar="N",
        help="concurrent requests (default: %(default)s)",
    )
    parser.add_argument(
        "--max-attempts",
        type=_positive,
        default=10,
        metavar="N",
        help="attempts per request; overload and lost connections are retried (default: %(default)s)",
    )
    add_api_arguments(parser)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value
