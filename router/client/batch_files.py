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
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

__all__ = [
    "ENDPOINTS",
    "BadInput",
    "BatchRequest",
    "ResultFile",
    "finished_ids",
    "pending",
    "read_requests",
    "result_line",
]

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions")


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
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
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


def _request(line: str, where: str) -> BatchRequest:
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
        raise BadInput(f"{where}: url {url!r}; use {' or '.join(ENDPOINTS)}")
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


def finished_ids(path: Path) -> set[str]:
    """Ids of requests with results in the file. Removes a last line that a crash cut off.

    Raises BadInput if the file contains anything other than results.
    """
    if not path.exists():
        return set()
    with path.open("rb+") as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            file.truncate(len(whole))
    return {_finished(line, path) for line in whole.splitlines() if line.strip()}


def _finished(line: bytes, path: Path) -> str:
    try:
        custom_id = json.loads(line)["custom_id"]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} exists and is not the output of a batch; name another file") from None
    return str(custom_id)


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
