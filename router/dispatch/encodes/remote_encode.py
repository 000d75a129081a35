"""Images of one sequence that an encode worker encodes, while the sequence waits or its text is computed."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.dispatch.sequence import SequenceState
from router.dispatch.workers.events import Message, SessionListener, WorkerLost
from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

_TICKET_BYTES: Final = 16
_LEAST_S: Final = 10.0
"""Time for rows beyond the predicted time of encoding them."""


class RemoteEncode:
    """Begins when it is made, and holds the sources of the rows until `end`."""

    def __init__(
        self,
        sequence: SequenceState,
        session: WorkerSession,
        items: Sequence[worker_pb2.MediaItem],
        seconds: float,
        on_end: Callable[[RemoteEncode], None],
    ) -> None:
        """`seconds`: predicted until the images are encoded. The worker of the prompt encodes them if it does
        not have their rows after twice that time and `_LEAST_S`."""
        self.session = session
        self.tokens = sum(item.length for item in items)
        """Prompt tokens of images that are not encoded yet."""
        self._sequence = sequence
        self._on_end = on_end
        self._id = secrets.randbits(64)
        self._sent_at = time.monotonic()
        tickets = [secrets.token_bytes(_TICKET_BYTES) for _ in items]
        timeout_s = _LEAST_S + 2 * seconds
        sequence.row_sources = self._sources(items, tickets, timeout_s)
        sequence.rows_at = self._sent_at + seconds
        sequence.waterfall.encode_worker = session.worker_id
        session.listen(self._id, SessionListener(self._on_event, lambda _output, _at: None))
        encode = worker_pb2.Encode(
            request_id=self._id,
            weights=session.info.served.tag,
            timeout_s=timeout_s,
            items=[
                worker_pb2.EncodeItem(item=item, ticket=ticket)
                for item, ticket in zip(items, tickets, strict=True)
            ],
        )
        session.send(worker_pb2.Command(encode=encode))

    def end(self) -> None:
        """The sequence has ended, or its first token is there."""
        self.session.forget(self._id)
        self.session.abort(self._id)
        self._stop()

    def _sources(
        self, items: Sequence[worker_pb2.MediaItem], tickets: Sequence[bytes], timeout_s: float
    ) -> Mapping[bytes, worker_pb2.RowsSource]:
        info = self.session.info
        return {
            item.digest: worker_pb2.RowsSource(
                address=info.rows_address,
                certificate=info.certificate,
                ticket=ticket,
                timeout_s=timeout_s,
                weights=info.served.tag,
            )
            for item, ticket in zip(items, tickets, strict=True)
        }

    def _on_event(self, message: Message | WorkerLost, at: float) -> None:
        match message:
            case worker_pb2.Encoded() as encoded:
                self.tokens -= sum(image.num_tokens for image in encoded.items)
                self._sequence.waterfall.encoded_elsewhere(encoded.items, self._sent_at)
            case worker_pb2.Failed(message=reason):
                name = self.session.worker_id
                _log.warning("%s does not encode images of %s: %s", name, self._sequence.id, reason)
                self._stop()
            case WorkerLost(reason=reason):
                name = self.session.worker_id
                _log.info("%s was lost with images of %s: %s", name, self._sequence.id, reason)
                self._stop()
            case _:
                pass

    def _stop(self) -> None:
        """Later attempts have the images encoded by the worker of the prompt."""
        self.tokens = 0
        self._sequence.row_sources = {}
        self._on_end(self)
