"""The weights that a worker computes with, and their replacement. On the engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from engine.core.weights import NewWeights
from engine.errors import EngineBusy, EngineError, RefillRefused, WeightsIncomplete
from engine.loop.engine import Engine
from rpc.baton.v1 import worker_pb2
from worker.staged_weights import StagedWeights

log = logging.getLogger(__name__)

INCOMPLETE: Final = "incomplete"
"""Tag of weights with which no request is computed."""


class WorkerWeights:
    """Which update made the weights: a request that names another one is refused."""

    def __init__(self, engine: Engine, *, identified: bool) -> None:
        """`identified`: the worker tells their identity, which both ends of a handoff compare."""
        self._engine = engine
        self.staged: Final = StagedWeights(engine.config.model_path)
        self._identified = identified
        self._served: worker_pb2.ServedWeights | None = worker_pb2.ServedWeights()
        """None after an update that failed half-way, or has read other weights than other workers."""
        self._asleep: worker_pb2.ServedWeights | None = None
        """What `let_go` has let go."""

    def identity(self) -> str:
        """See `Job.weights`."""
        return str(self._engine.weights) if self._identified else ""

    def refusal(self, tag: str) -> str | None:
        """Why what asks for the weights `tag` cannot be computed; None: it can."""
        if self._served is None:
            return "the weights are incomplete: an update failed"
        if tag != self._served.tag:
            return f"this worker has the weights {self._served.tag!r}; the request asks for {tag!r}"
        return None

    def let_go(self) -> None:
        """The weights are to be given back: no request is computed until `read_again`. Raises EngineError."""
        if self._engine.config.load_format == "dummy":
            raise EngineError("random weights cannot be read again")
        if self._served is not None:
            self._asleep, self._served = self._served, None

    def read_again(self) -> None:
        """Read what was let go. Raises EngineError, and stays without weights then."""
        if (before := self._asleep) is None:
            return
        digest = before.digest or self._engine.weights.checkpoint
        self._engine.refill(NewWeights(self.staged.path(before.folder), before.version))
        if self._engine.weights.checkpoint != digest:
            raise EngineError(f"{before.folder or 'the folder'} has other weights than before")
        self._asleep, self._served = None, before

    def update(
        self, wanted: worker_pb2.ServedWeights, is_idle: Callable[[], bool]
    ) -> worker_pb2.WeightsReport | None:
        """Replace the weights; None if requests or pages are left, so that nothing has changed.

        Takes as long as reading the folder. What was updated with the same tag is not updated again.
        """
        if self._served is not None and self._served.tag == wanted.tag:
            return worker_pb2.WeightsReport(weights=self._served)
        folder = self.staged.path(wanted.folder)
        if not is_idle():
            return None
        before, self._served, self._asleep = (
            self._served,
            None,
            None,
        )  # also after an error that is not expected
        try:
            self._engine.refill(NewWeights(folder, wanted.version))
        except EngineBusy:
            self._served = before
            return None
        except RefillRefused as error:
            self._served = before
            return worker_pb2.WeightsReport(weights=before, refused=str(error))
        except WeightsIncomplete as error:
            return _incomplete(str(error))
        digest = self._engine.weights.checkpoint
        if wanted.digest and digest != wanted.digest:
            return _incomplete(f"{folder} has the digest {digest} here, and {wanted.digest} elsewhere")
        served = worker_pb2.ServedWeights(
            tag=wanted.tag,
            folder=wanted.folder,
            version=wanted.version,
            digest=digest,
        )
        self._served = served
        log.info("weights of %s, version %r, digest %s", folder, wanted.version, served.digest)
        return worker_pb2.WeightsReport(weights=served)


def _incomplete(reason: str) -> worker_pb2.WeightsReport:
    served = worker_pb2.ServedWeights(tag=INCOMPLETE)
    return worker_pb2.WeightsReport(weights=served, refused=reason, incomplete=True)
