"""Modes in which a worker's role determines what it computes."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.failures import no_worker_ready
from router.dispatch.routing.route import Pick, Route
from router.dispatch.routing.worker_choice import WorkerChoice
from router.dispatch.sequence import Sequence
from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["DisaggSelector", "MixedSelector"]


class MixedSelector:
    """Every worker computes its requests from the first token to the last. Implements `WorkerSelector`."""

    def __init__(self, registry: Registry, choice: WorkerChoice) -> None:
        self._registry = registry
        self._choice = choice

    def is_ready(self) -> bool:
        return bool(self._registry.ready(ROLE_DECODE))

    def has_room(self, want: AdmissionRequest) -> bool:
        """Requests queue at the workers, where they are admitted without a round trip."""
        return True

    def claim(self, want: AdmissionRequest) -> Claim | None:
        return None

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        session = self._choice.pick(ROLE_DECODE, sequence, avoid)
        return None if session is None else Route(lambda _: session, is_local=True, why="mixed")

    def completed(self, output_tokens: int) -> None:
        pass

    def probe(self, pick: Pick) -> Route:
        return Route(pick, is_local=True, why="probe")

    def move_target(self, tokens: int, leaving: str) -> WorkerSession | None:
        return self._choice.move_target(self._registry.ready(ROLE_DECODE), tokens, leaving)

    def prefill_workers(self) -> list[WorkerSession]:
        return self._registry.ready(ROLE_DECODE)

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        return [s for s in self._registry.sessions() if s.role == role]


class DisaggSelector:
    """Prefill workers compute prompts, decode workers the rest. Implements `WorkerSelector`.

    The decode worker is chosen when its pages are reserved, by the latest load. While no worker of one role
    is ready, workers of the other role compute whole sequences.
    """

    def __init__(self, registry: Registry, choice: WorkerChoice) -> None:
        self._registry = registry
        self._choice = choice

    def is_ready(self) -> bool:
        return bool(self._choice.ready_workers())

    def has_room(self, want: AdmissionRequest) -> bool:
        return self._choice.can_decode(want.tokens, want.avoid)

    def claim(self, want: AdmissionRequest) -> Claim | None:
        return self._choice.promise(want.tokens, want.avoid)

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        if (missing := self._missing_role()) is not None:
            return self._local(missing, sequence, avoid)

        def pick(role: worker_pb2.Role) -> WorkerSession:
            session = self._choice.pick(role, sequence, avoid)
            if session is None:
                raise no_worker_ready(self._registry.complaints())
            return session

        return Route(pick, is_local=False, why="disagg")

    def _local(self, missing: worker_pb2.Role, sequence: Sequence, avoid: Set[str]) -> Route | None:
        session = self._choice.pick(_OTHER[missing], sequence, avoid)
        name = worker_pb2.Role.Name(missing).removeprefix("ROLE_").lower()
        why = f"disagg: no {name} worker is ready"
        return None if session is None else Route(lambda _: session, is_local=True, why=why)

    def _missing_role(self) -> worker_pb2.Role | None:
        return next((role for role in _OTHER if not self._registry.ready(role)), None)

    def completed(self, output_tokens: int) -> None:
        pass

    def probe(self, pick: Pick) -> Route:
        return Route(pick, is_local=False, why="probe")

    def move_target(self, tokens: int, leaving: str) -> WorkerSession | None:
        ready = self._registry.ready(ROLE_DECODE) or self._registry.ready(ROLE_PREFILL)
        return self._choice.move_target(ready, tokens, leaving)

    def prefill_workers(self) -> list[WorkerSession]:
        return self._registry.ready(ROLE_PREFILL) or self._registry.ready(ROLE_DECODE)

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        return [s for s in self._registry.sessions() if s.role == role]


_OTHER: Final = {ROLE_PREFILL: ROLE_DECODE, ROLE_DECODE: ROLE_PREFILL}
