"""Input and output files of OpenAI's Batch API: one JSON object per line.

Results are written as they arrive, in any order, in whole lines. An interrupted run is resumed from its
output: a request is done if its `custom_id` is in the output file.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/decisions",
    "/v1/systemone",
    "/v1/embeddings",
)


class BadInput(Exception):
    """The input is not a batch; the message names file and line."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str
    url: str
    body: Mapping[str, Any]


def read_requests(path: Path) -> list[BatchRequest]:
    """All requests, checked before the first is sent. Raises BadInput, OSError."""
    requests: list[BatchRequest] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        request = _request(line, where)
        if request.custom_id in seen:
            first = seen[request.custom_id]
            raise BadInput(f"{where}: custom_id {request.custom_id!r} is that of line {first}")
        seen[request.custom_id] = number
        requests.append(request)
    if not requests:
        raise BadInput(f"{path} has no request")
    return requests


def _request(line: bytes, where: str) -> BatchRequest:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{where}: not JSON: {error}") from None
    match value:
        case {"custom_id": str(custom_id), "method": "POST", "url": str(url), "body": dict(body)}:
            pass
        case _:
            raise BadInput(
                f'{where}: needs "custom_id" (text), "method": "POST", "url" and "body" (an object)'
            )
    if url not in ENDPOINTS:
        raise BadInput(f"{where}: url {url!r}; use one of {', '.join(ENDPOINTS)}")
    if body.get("stream"):
        raise BadInput(f"{where}: a batch has no streams; leave `stream` out")
    return BatchRequest(custom_id, url, body)


def result_line(
    request: BatchRequest, status: int | None, body: Any, request_id: str = "", error: str | None = None
) -> dict[str, Any]:
    """A line of the output file, or of the error file. `status` None: there was no answer, see `error`."""
    return {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": request.custom_id,
        "response": None
        if status is None
        else {"status_code": status, "request_id": request_id, "body": body},
        "error": None if error is None else {"code": "no_answer", "message": error},
    }


def check_paths(**paths: Path) -> None:
    """Raises BadInput if two of them are one file, by whatever names; each would overwrite the other."""
    for (one, path), (other, second) in combinations(paths.items(), 2):
        if path.resolve() == second.resolve() or (
            path.exists() and second.exists() and path.samefile(second)
        ):
            raise BadInput(
                f"{path} is the {one} file and the {other} file; name another file for one of them"
            )


def finished_ids(path: Path) -> set[str]:
    """Ids of requests with answers in the output file. Removes a last line that a crash cut off.

    Raises BadInput if the file contains anything other than answers; it is not changed then.
    """
    return _ids(path, answered=True)


def forget_failures(path: Path) -> None:
    """Deletes an error file, whose requests are sent again.

    Raises BadInput if the file contains anything other than failed requests; it is not changed then.
    """
    _ids(path, answered=False)
    path.unlink(missing_ok=True)


_FIRST_KEY: Final = b'{"id": "batch_req_'
"""How a line of `result_line` begins."""


def _ids(path: Path, *, answered: bool) -> set[str]:
    if not path.exists():
        return set()
    content = path.read_bytes()
    *whole, rest = content.split(b"\n")
    ids = {_result_id(line, path, answered) for line in whole if line.strip()}
    if rest:
        if not (rest.startswith(_FIRST_KEY) or _FIRST_KEY.startswith(rest)):
            raise _foreign(path, answered)
        os.truncate(path, len(content) - len(rest))
    return ids


def _result_id(line: bytes, path: Path, answered: bool) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        raise _foreign(path, answered) from None
    match value:
        case {"custom_id": str(custom_id), "response": {"status_code": int(status)}, "error": None}:
            is_answer = status == HTTPStatus.OK
        case {"custom_id": str(custom_id), "response": None, "error": dict()}:
            is_answer = False
        case _:
            raise _foreign(path, answered)
    if is_answer is not answered:
        raise _foreign(path, answered)
    return custom_id


def _foreign(path: Path, answered: bool) -> BadInput:
    content = "the output" if answered else "the failed requests"
    return BadInput(f"{path} exists and is not {content} of a batch; name another file")


class ResultFile:
    """Appends lines; each is on disk when `write` returns. The file is created with the first line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def pending(requests: list[BatchRequest], done: set[str]) -> Iterator[BatchRequest]:
    """Requests without a result, in their order."""
    return (request for request in requests if request.custom_id not in done)
