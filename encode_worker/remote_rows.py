"""Rows that a worker fetches from the one that encodes an image. If they do not come, it encodes the image.

The request is queued meanwhile, and its prompt is computed up to the first image whose rows are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import grpc
from torch import Tensor

from encode_worker.rows import RowsExpected, RowsRefused, rows_of
from engine.core.request import Request
from engine.media.encoder import MediaEncoder
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.peer_calls import channel_to

_THREADS: Final = 8
_REASONS: Final = {
    grpc.StatusCode.UNAVAILABLE: "lost",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.FAILED_PRECONDITION: "refused",
}


class RowsReports(Protocol):
    def fetched(self, request: Request, digest: bytes, num_bytes: int) -> None:
        """The rows of its image of this digest came from another worker."""

    def not_fetched(self, reason: str) -> None:
        """They did not, and the item is encoded here."""

    def is_live(self, request: Request) -> bool:
        """Whether a request has not ended."""


@dataclass(slots=True, eq=False)
class _Fetch:
    digest: bytes
    """Digest of the image."""
    requests: list[Request] = field(default_factory=list)


class RemoteRows:
    """Its caller is the engine thread, except for `stop`."""

    def __init__(
        self,
        encoder: Callable[[], MediaEncoder | None],
        post: Callable[..., None],
        reports: RowsReports,
        *,
        placeholder: int,
        width: int,
    ) -> None:
        """`post(function, *arguments)`: calls it on the engine thread. `width`: of a row."""
        self._encoder = encoder
        self._post = post
        self._reports = reports
        self._placeholder = placeholder
        self._width = width
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rows")
        self._channels: dict[tuple[str, bytes], grpc.Channel] = {}
        self._fetches: dict[bytes, _Fetch] = {}
        """Fetches by digest of the item."""

    def begin(self, request: Request, work: worker_pb2.Work, cached: int) -> None:
        """Fetch the rows of images that have a source; `cached`: tokens of the prompt that need none."""
        encoder = self._encoder()
        if encoder is None:
            return
        for item, message in zip(request.media, work.media, strict=True):
            is_needed = message.HasField("rows") and item.end > cached
            if not is_needed or item.digest in request.awaits or encoder.has(item.digest):
                continue
            request.awaits.add(item.digest)
            fetch = self._fetches.get(item.digest)
            if fetch is None:
                fetch = self._fetches[item.digest] = _Fetch(item.digest)
                rows = sum(token == self._placeholder for token in request.prompt[item.offset : item.end])
                expected = RowsExpected(item.digest, rows, self._width, encoder.dtype, work.weights)
                self._start(fetch, message.rows, encoder, expected)
            fetch.requests.append(request)

    def stop(self) -> None:
        """Fetches that have not begun are dropped; others end with their channels."""
        for channel in list(self._channels.values()):
            channel.close()
        self._threads.shutdown(cancel_futures=True)

    def _start(
        self, fetch: _Fetch, source: worker_pb2.RowsSource, encoder: MediaEncoder, expected: RowsExpected
    ) -> None:
        channel = self._channel(source)
        running = self._threads.submit(_fetched, channel, source, expected)
        running.add_done_callback(lambda done: self._post(partial(self._ended, fetch, done, encoder)))

    def _ended(self, fetch: _Fetch, done: Future[Tensor], encoder: MediaEncoder) -> None:
        del self._fetches[fetch.digest]
        error = None if done.cancelled() else done.exception()
        rows = None if done.cancelled() or error is not None else done.result()
        waiting = [request for request in fetch.requests if self._reports.is_live(request)]
        if rows is None:
            self._reports.not_fetched(_reason(error))
        elif waiting and encoder is self._encoder():  # the rows are those of the weights that they wait for
            encoder.keep(fetch.digest, rows)
        for request in waiting:
            request.awaits.discard(fetch.digest)
            if rows is not None:
                self._reports.fetched(request, fetch.digest, rows.nbytes)

    def _channel(self, source: worker_pb2.RowsSource) -> grpc.Channel:
        """One for each encode worker, whose certificate is another one after a restart."""
        key = source.address, source.certificate
        if key not in self._channels:
            for old in [old for old in self._channels if old[0] == source.address]:
                self._channels.pop(old).close()
            self._channels[key] = channel_to(*key)
        return self._channels[key]


def _fetched(channel: grpc.Channel, source: worker_pb2.RowsSource, expected: RowsExpected) -> Tensor:
    stub = worker_pb2_grpc.RowsStub(channel)  # type: ignore[no-untyped-call]
    parts = stub.Fetch(worker_pb2.FetchRows(ticket=source.ticket), timeout=source.timeout_s)
    try:
        return rows_of(parts, expected, source.ticket)
    finally:
        parts.cancel()


def _reason(error: BaseException | None) -> str:
    """The label of a metric."""
    match error:
        case RowsRefused():
            return error.reason
        case grpc.RpcError():
            return _REASONS.get(error.code(), "error")
        case _:
            return "error"
