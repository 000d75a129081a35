"""One attempt at a sequence on one worker."""

from __future__ import annotations

from router.dispatch.attempts.assignment import Assignment
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.request_status import RequestStatus
from router.dispatch.workers.events import Message, WorkerLost
from router.dispatch.workers.session import WorkerSession
from router.placement.account.load import TaskPhase
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE


class MixedAttempt(Attempt):
    """One worker prefills and decodes."""

    def _begin(self) -> None:
        phase = TaskPhase.READ if self.sequence.is_prefill_only else TaskPhase.PREFILL
        self._worker = self._assign(ROLE_DECODE, self._from_worker, phase)
        self._waterfall.placed(self._worker.session.worker_id, None, self._route.why)
        self._submit(self._worker)

    @property
    def awaited(self) -> WorkerSession:
        return (self._decoder or self._worker).session

    def _status(self) -> RequestStatus:
        if self._decoder is not None:
            return self._decoding_at(self.awaited)
        return self._prefilling_at(self._worker) if self._worker.is_running else self._queued_on(self._worker)

    def _decodes(self, assignment: Assignment) -> None:
        self._decoder = self._decoder or assignment

    def _from_worker(self, message: Message | WorkerLost, at: float) -> None:
        match message:
            case worker_pb2.HandedOff():
                self._on_source_sent(self._worker)
            case worker_pb2.Started() as started:
                self._start(self._worker, started, at)
            case worker_pb2.Failed() as failed:
                self._assignment_failed(self._worker, self._worker.failed(failed))
            case worker_pb2.Progress() as progress:
                self._progress(self._worker, progress)
            case WorkerLost() as loss:
                self._assignment_failed(self._worker, self._worker.lost(loss))
            case _:
                pass
