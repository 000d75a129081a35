"""One attempt at a sequence on two workers, with a KV handoff between prompt and answer."""

from __future__ import annotations

from router.dispatch.attempts.assignment import Assignment
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.request_status import RequestStatus, Stage
from router.dispatch.routing.route import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import busy_seconds
from router.dispatch.workers.events import Message, WorkerLost
from router.dispatch.workers.session import WorkerSession
from router.placement.account.load import TaskPhase
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL


class DisaggAttempt(Attempt):
    """A prefill worker computes the prompt and the first token, a decode worker the others.

    The decode worker is chosen, and its pages are reserved, when the first chunk starts: a queued request
    holds no memory on a decode worker, and the choice uses the latest load. Each chunk's KV is transferred
    while the next chunk is computed. The client gets the first token from the prefill worker, before the
    transfer is complete.
    """

    def __init__(self, sequence: SequenceState, route: Route, handoff_timeout_s: float) -> None:
        super().__init__(sequence, route)
        self._handoff_timeout_s = handoff_timeout_s
        self._decode: Assignment | None = None
        self._has_arrived = False
        self._is_reserved = False

    def _begin(self) -> None:
        self._prefill = self._assign(ROLE_PREFILL, self._from_prefill, TaskPhase.PREFILL_FOR_OTHER)
        self._waterfall.placed(self._prefill.session.worker_id, None, self._route.why)
        self._submit(self._prefill, handoff=True)

    @property
    def awaited(self) -> WorkerSession:
        if self._decoder is not None:
            return self._decoder.session
        reserved = self._waterfall.reserved is not None
        if self._decode is None or (reserved and not self._prefill.has_tokens):
            return self._prefill.session
        return self._decode.session

    def _status(self) -> RequestStatus:
        prefill, decode = self._prefill, self._decode
        if self._decoder is not None:
            return self._decoding_at(self._decoder.session)
        if not self._prefill.has_tokens or decode is None:
            return self._prefilling_at(prefill) if prefill.is_running else self._queued_on(prefill)
        stage, waits_for = (Stage.TRANSFER, "transfer") if self._is_reserved else (Stage.RESERVE, "pages")
        return RequestStatus(stage, decode.session.worker_id, waits_for, len(self.sequence.prompt))

    def _decodes(self, assignment: Assignment) -> None:
        if assignment is self._prefill:
            self._check_independent()
        else:
            self._decoder = self._decoder or assignment

    def _from_prefill(self, message: Message | WorkerLost, at: float) -> None:
        match message:
            case worker_pb2.Started() as started:
                self._start(self._prefill, started, at)
                self._reserve()
            case worker_pb2.Progress() as progress:
                self._progress(self._prefill, progress)
            case worker_pb2.HandedOff() as handed_off:
                self._waterfall.on_handed_off(handed_off)
                seconds = busy_seconds((push.begin_s, push.end_s) for push in handed_off.pushes)
                if self._decode is not None:
                    source, destination = self._prefill.session.key, self._decode.session.key
                    self._route.on_transfer(source, destination, handed_off.bytes, seconds)
                self._prefill.done()
            case worker_pb2.Failed() as failed:
                error = self._prefill.failed(failed)
                if not self._is_independent:
                    raise error
            case WorkerLost() as loss:
                error = self._prefill.lost(loss)
                if not self._is_independent:
                    raise error
            case _:
                pass

    def _from_decode(self, message: Message | WorkerLost, at: float) -> None:
        decode = self._decode
        assert decode is not None
        match message:
            case worker_pb2.Reserved() as reserved:
                self._is_reserved = True
                self._waterfall.reserve(at)
                decode.session.load.reserved(len(reserved.ticket.pages), decode.task.tokens)
                self._prefill.session.send(
                    worker_pb2.Command(attach=worker_pb2.Attach(ticket=reserved.ticket))
                )
            case worker_pb2.Arrived() as arrived:
                decode.is_running = True
                self._waterfall.arrive(at)
                self._waterfall.adapter_loaded(decode.session.worker_id, arrived.adapter_load_s)
                self._has_arrived = True
                decode.task.arrived(decode.task.tokens + 1)
                self._prefill.done()
                self._check_independent()
            case worker_pb2.Progress() as progress:
                self._progress(decode, progress)
            case worker_pb2.HandedOff():
                self._on_source_sent(decode)
            case worker_pb2.Failed() as failed:
                self._on_decode_failed(decode, failed)
            case WorkerLost() as loss:
                self._assignment_failed(decode, decode.lost(loss))
            case _:
                pass

    def _on_decode_failed(self, decode: Assignment, failed: worker_pb2.Failed) -> None:
        """The decode worker has failed, or its sender has given up the handoff.

        A sender that gives up reports why, and its report decides: the answer may be complete with its first
        token, so that nothing is handed over. The two reports arrive in any order.
        """
        if failed.code == worker_pb2.FAILURE_CODE_SENDER and self._prefill.active:
            decode.dropped()
        else:
            self._assignment_failed(decode, decode.failed(failed))

    @property
    def _is_independent(self) -> bool:
        """Whether the decode worker has all KV and the client all tokens: the prefill worker may fail."""
        return self._has_arrived and self._prefill.has_tokens

    def _check_independent(self) -> None:
        if self._is_independent:
            self._decoder = self._decoder or self._decode

    def _reserve(self) -> None:
        self._decode = self._assign(ROLE_DECODE, self._from_decode, TaskPhase.INCOMING)
        prefill, decode = self._prefill.session, self._decode.session
        self._waterfall.placed(prefill.worker_id, decode.worker_id, self._route.why)
        self._decode.send(
            worker_pb2.Command(
                reserve=worker_pb2.Reserve(
                    work=self.sequence.awaited(self._id),
                    sender=prefill.info.peer,
                    timeout_s=self._handoff_timeout_s,
                    no_wait=not self._route.may_wait,
                )
            )
        )
