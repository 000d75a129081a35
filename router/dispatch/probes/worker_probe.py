"""Probes workers with requests of two tokens, on the same path as clients' requests.

A worker's stream may be alive while its requests fail: its engine hangs, or a prefill worker cannot reach a
decode worker's memory. A worker that has just served a client is not probed, so probes are rare in a busy
cluster. A suspect worker is probed at once, and repeatedly until a probe succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from common.background import cancelled, repeat, supervised
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Pick
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from router.dispatch.workers.liveness import CircuitState
from router.dispatch.workers.member import Member, WorkerState
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2, worker_pb2

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
_AGAIN_S: Final = 1.0
_PROMPT: Final = tuple(range(8))
"""Token ids that exist in every vocabulary."""
_SAMPLING: Final = sampling_pb2.SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, seed=1)
"""Two tokens, so that the decode worker decodes one from transferred KV."""

MakeAttempt: TypeAlias = Callable[[SequenceState, Pick], Attempt]


class WorkerProbe:
    """Probes idle and suspect workers. A context manager that runs the task."""

    def __init__(
        self,
        registry: Registry,
        make_attempt: MakeAttempt,
        able: Callable[[worker_pb2.Role], list[WorkerSession]],
        *,
        interval_s: float,
        timeout_s: float,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`able(role)`: workers that can compute this role's part of a sequence. `is_paused`: workers that
        replace their weights answer no probe.

        A worker unused for `interval_s` is probed; the probe fails after `timeout_s`.
        """
        self._registry = registry
        self._make_attempt = make_attempt
        self._able = able
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._is_paused = is_paused
        self._running: dict[str, asyncio.Task[None]] = {}
        """Running probes by worker id."""

    async def __aenter__(self) -> WorkerProbe:
        self._task = supervised(repeat(self._look, _LOOK_S, _log, "workers are not probed"), "probe")
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(self._task, *self._running.values())

    async def _look(self) -> None:
        for member in self._registry.members():
            name = member.handle.worker_id
            if name not in self._running and self._is_due(member):
                self._running[name] = supervised(self._ask(member), f"probe {name}")

    def _is_due(self, member: Member) -> bool:
        if self._is_paused():
            return False
        match member.state:
            case WorkerState.SUSPECT | WorkerState.UNHEALTHY:
                return True
            case WorkerState.READY:
                return time.monotonic() - member.breaker.proved_at > self._interval_s
            case _:
                return False

    async def _ask(self, member: Member) -> None:
        name, before = member.handle.worker_id, member.breaker.state
        try:
            with contextlib.suppress(_NoCompanion):
                await self._send_probe(member)
            if member.breaker.state is not before:
                _log.warning("%s is %s now", name, member.state.value)
                await self._registry.reconsider()
            if member.breaker.state is not CircuitState.CLOSED:
                await asyncio.sleep(_AGAIN_S)
        finally:
            del self._running[name]

    async def _send_probe(self, member: Member) -> None:
        session = member.session
        assert session is not None, "only connected workers are probed"

        def pick(role: worker_pb2.Role) -> WorkerSession:
            if session.role in (role, worker_pb2.ROLE_ENCODE):  # an encode worker computes both parts
                return session
            return self._companion(role, session)

        sequence = SequenceState(
            worker_pb2.Work(prompt=_PROMPT, sampling=_SAMPLING), Waterfall(time.monotonic())
        )
        attempt = self._make_attempt(sequence, pick)
        step, failures = session.step, member.breaker.failures
        try:
            async with asyncio.timeout(self._timeout_s):
                await attempt.run()
        except TimeoutError:
            # The engine may only be busy; a hung companion fails its own probe.
            if attempt.awaited is session and session.step == step:
                member.breaker.probe_failed()
        except (AttemptFailed, RouterError) as error:
            _log.debug("%s: a probe failed: %s", session.worker_id, error)
            if member.breaker.failures > failures:  # this worker failed, not a companion
                member.breaker.probe_failed()
        else:
            member.breaker.probe_succeeded()

    def _companion(self, role: worker_pb2.Role, asked: WorkerSession) -> WorkerSession:
        """The healthiest connected worker for the other role, even out of rotation; else `asked` itself."""
        here = [session for session in self._able(role) if session.alive]
        if not here:
            raise _NoCompanion
        return min(here, key=lambda s: (s is asked, s.breaker.state, s.load.tokens))


class _NoCompanion(Exception):
    """No worker of the other role is connected."""
