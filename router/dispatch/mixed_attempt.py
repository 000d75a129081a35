"""An attempt of which one worker computes everything."""

from __future__ import annotations

from router.dispatch.attempt import Attempt
from router.dispatch.interface import Delta
from router.workers.events import Event, WorkerLost
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE

__all__ = ["MixedAttempt"]


class MixedAttempt(Attempt):
    """One worker prefills and decodes."""

    def _begin(self) -> None:
        self._worker = self._enlist(ROLE_DECODE, self._from_worker)
        self._waterfall.placed(self._worker.session.worker_id, None, self._route.why)
        self._worker.ask(worker_pb2.Command(submit=worker_pb2.Submit(work=self._work())))

    @property
    def awaited(self) -> WorkerSession:
        return (self._writer or self._worker).session

    def _from_worker(self, event: Event, delta: Delta) -> None:
        match event.message:
            case worker_pb2.Tokens() as tokens:
                self._writer = self._writer or self._worker
                self._take_tokens(self._worker, tokens, event.at, delta)
            case worker_pb2.HandedOver():
                self._hand_over(self._worker)
            case worker_pb2.Started() as started:
                self._worker.begun = True
                self._waterfall.start(started, event.at)
            case worker_pb2.Failed() as failed:
                self._lose(self._worker, self._worker.failed(failed))
            case worker_pb2.Progress() as progress:
                self._route.tracker.progress(progress.num_computed)
            case WorkerLost() as loss:
                self._lose(self._worker, self._worker.lost(loss))
            case _:
                pass
