"""Images that this worker encodes for others, and rows that it fetches. On the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from encode_worker.encodes import EncodeOrder, Encodes
from encode_worker.handouts import Handouts
from encode_worker.remote_rows import RemoteRows
from engine.core.request import Request, RequestId
from engine.media.encoder import MediaEncoder
from rpc.baton.v1 import worker_pb2
from worker.parts import Parts
from worker.session.answers import Answers
from worker.session.convert import media_item_from_proto
from worker.session.jobs import Job
from worker.session.router_session import RouterSession


class WorkerImages:
    def __init__(self, parts: Parts, answers: Answers) -> None:
        self._answers = answers
        self._clock = parts.clock
        self._kv = parts.engine.kv
        runner = parts.runner

        def encoder() -> MediaEncoder | None:
            return runner.media

        self._encodes = Encodes(encoder, parts.clock)
        self._remote: RemoteRows | None = None
        if (vision := runner.spec.vision) is not None and runner.media is not None:
            self._remote = RemoteRows(
                encoder,
                parts.inbox.post,
                self,
                placeholder=vision.placeholder,
                width=runner.spec.hidden_size * (1 + vision.deepstack),
            )

    @property
    def handouts(self) -> Handouts | None:
        """Rows that other workers may fetch; None: the worker takes no images."""
        return None if self._remote is None else self._encodes.handouts

    @property
    def waiting_tokens(self) -> int:
        """See `Encodes.waiting_tokens`."""
        return self._encodes.waiting_tokens

    @property
    def next_wakeup(self) -> float:
        """When `turn` has something to do."""
        return self._encodes.next_wakeup

    def order(
        self,
        session: RouterSession,
        command: worker_pb2.Encode,
        arrived: float,
        refusal: Callable[[str], str | None],
    ) -> None:
        """Encode images for another worker. `refusal`: see `WorkerWeights`."""
        outbox = self._answers.outbox
        code = worker_pb2.FAILURE_CODE_INTERNAL
        self._encodes.begin(
            EncodeOrder(
                command.request_id,
                tuple((media_item_from_proto(each.item), each.ticket) for each in command.items),
                arrived + command.timeout_s,
                command.weights,
                refusal,
                partial(outbox.encoded, session, command.request_id, arrived),
                partial(outbox.failed, session, command.request_id, code),
            )
        )

    def end(self, id: RequestId) -> bool:
        """See `Encodes.end`."""
        return self._encodes.end(id)

    def turn(self, now: float) -> bool:
        """Encode the next image that another worker waits for; returns whether there was one."""
        had = bool(self._encodes.waiting_tokens)
        use = self._encodes.turn(now)
        if use is not None:
            self._answers.metrics.encoded_for_others(use)
        return had

    def fetch(self, job: Job, work: worker_pb2.Work) -> None:
        """Begin to fetch the rows of those images of a new request that another worker encodes."""
        if self._remote is not None and any(item.HasField("rows") for item in work.media):
            self._remote.begin(job.request, work, self._kv.cached_tokens(job.request))

    def stop(self) -> None:
        if self._remote is not None:
            self._remote.stop()

    # ------------------------------------------------------------------------------ RowsReports

    def fetched(self, request: Request, digest: bytes, num_bytes: int) -> None:
        self._answers.metrics.rows_fetched("fetched", num_bytes)
        if (job := self._answers.jobs.get(request.id)) is not None:
            self._answers.outbox.fetched(job, digest, self._clock() - job.arrival, num_bytes)

    def not_fetched(self, reason: str) -> None:
        self._answers.metrics.rows_fetched(reason)

    def is_live(self, request: Request) -> bool:
        job = self._answers.jobs.get(request.id)
        return job is not None and job.request is request
