"""Memory that a worker without requests gives back to the system, and takes again. On the engine thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from engine.device.given_back import give_back
from engine.errors import EngineError
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.loop.replace_weights import is_unused
from rpc.baton.v1 import worker_pb2
from worker.weights import WorkerWeights

KV: Final = "kv_cache"
WEIGHTS: Final = "weights"


class WorkerSleep:
    def __init__(self, engine: Engine, weights: WorkerWeights, transport: str | None) -> None:
        """`transport`: the KV transport that has the pool registered, if any."""
        self._engine: Final = engine
        self._weights: Final = weights
        self._transport: Final = transport

    def change(
        self, request: worker_pb2.SleepRequest, is_idle: Callable[[], bool]
    ) -> worker_pb2.SleepReport | None:
        """None: requests, or pages that are in use, are left; nothing has changed."""
        if not is_idle() or not is_unused(self._engine.kv):
            return None
        try:
            given = self._release(set(request.release)) if request.release else 0
            if WEIGHTS in request.resume:
                self._weights.read_again()
        except EngineError as error:
            return worker_pb2.SleepReport(refused=str(error))
        return worker_pb2.SleepReport(bytes=given)

    def _release(self, what: Collection[str]) -> int:
        """Raises EngineError before anything is released."""
        engine, runner = self._engine, self._engine.runner
        if not isinstance(runner, ModelRunner) or engine.config.tensor_parallel_size > 1:
            raise EngineError("only a worker with one rank gives memory back")
        if runner.kv.memory.device.type != "cpu":
            raise EngineError("memory of a GPU is not given back: captured graphs hold its addresses")
        if KV in what and self._transport not in (None, "loopback"):
            raise EngineError(f"KV is registered with the transport {self._transport}, and stays")
        if WEIGHTS in what:
            self._weights.let_go()
        given = 0
        if KV in what:
            engine.kv.clear(None)
            given += give_back([runner.kv.memory])
        if WEIGHTS in what:
            given += give_back(runner.model.parameters())
        return given
