"""Admission: a sequence is sent to workers when a decode worker has room for it.

If a prompt were prefilled without room for its KV on a decode worker, its handoff would time out after the
first token and the prompt would be recomputed. So sequences wait here, where they hold no resources. Retries
after the loss of a worker go first, limited to a window of tokens: all at once they would delay each other
and all new prompts. Shorter sequences pass one for which there is no room, up to a bound as in the engine's
queue: neither starves the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from engine.config import PATIENCE
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Route
from router.errors import RouterError

_LOOKAHEAD: Final = 64
"""Sequences without room behind which others are still looked at: bounds the cost of a look."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A sequence that waits for admission."""

    tokens: int
    place: Callable[[], Route | None]
    """Reserves room for it and returns its workers; None if none has room. Raises RouterError if none ever
    will, and AttemptFailed if no worker is ready."""
    is_retry: bool = False


class AdmissionGrant:
    """Admission of one attempt; must be closed when the attempt ends."""

    __slots__ = ("_admission", "_retry_tokens", "route")

    def __init__(self, admission: AdmissionGate, route: Route, retry_tokens: int) -> None:
        self._admission = admission
        self._retry_tokens = retry_tokens
        self.route = route

    def __enter__(self) -> AdmissionGrant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def computed(self) -> None:
        """The prompt is computed. Idempotent."""
        if self._retry_tokens:
            tokens, self._retry_tokens = self._retry_tokens, 0
            self._admission.retry_computed(tokens)

    def close(self) -> None:
        had_claim = self.route.claim is not None and self.route.claim.end()
        self.computed()
        if had_claim:
            self._admission.admit_waiting()


@dataclass(slots=True, eq=False)
class _Waiting:
    want: AdmissionRequest
    grant: asyncio.Future[AdmissionGrant]
    passed_tokens: int = 0
    """Tokens of the sequences that were admitted before it, although they came later."""


class AdmissionGate:
    """Two queues, for retries and new sequences, each in order of arrival.

    A sequence of n tokens without room is passed by at most n * PATIENCE tokens of shorter ones.
    """

    def __init__(self, check: Callable[[int], None], retry_window: Callable[[], int]) -> None:
        """`check(tokens)`: raises RouterError if no worker will ever have room for so many. `retry_window()`:
        tokens of retries that may be in prefill at a time.
        """
        self._check = check
        self._retry_window = retry_window
        self._retries: dict[_Waiting, None] = {}
        self._new: dict[_Waiting, None] = {}
        self._retrying = 0
        """Tokens of retries that are being computed."""

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return len(self._retries) + len(self._new)

    def try_admit(self, want: AdmissionRequest) -> AdmissionGrant | None:
        """Admit a sequence without waiting; None if it must wait. O(workers). Raises as `place` does."""
        if self._retries or (self._new and not want.is_retry):
            self._check(want.tokens)  # refused at once if waiting is useless
            return None
        return self._grant(want)

    async def wait(self, want: AdmissionRequest, patience_s: float) -> AdmissionGrant:
        """Wait for admission. Raises TimeoutError after `patience_s`, and as `place` does."""
        waiting = _Waiting(want, asyncio.get_running_loop().create_future())
        self._queue_of(waiting)[waiting] = None
        try:
            self.admit_waiting()  # it may pass those before it
            async with asyncio.timeout(None if patience_s == math.inf else patience_s):
                return await waiting.grant
        except BaseException:
            if waiting in (queue := self._queue_of(waiting)):
                del queue[waiting]
                self.admit_waiting()  # later ones may fit
            elif waiting.grant.exception() is None:
                waiting.grant.result().close()  # granted at the time of the timeout
            raise

    def admit_waiting(self) -> None:
        """Admit waiting sequences after load has decreased. O(1) if none waits."""
        settled: list[_Waiting] = []
        blocked: list[_Waiting] = []
        shortest = allowance = math.inf  # tokens without room; tokens that may pass `blocked`
        for waiting in chain(self._retries, self._new):
            want = waiting.want
            if waiting.grant.cancelled():
                continue  # its owner removes it
            if len(blocked) == _LOOKAHEAD or self._must_pace(want):
                break
            if want.tokens < shortest and want.tokens <= allowance:
                if self._settle(waiting):
                    settled.append(waiting)
                    allowance -= want.tokens
                    for before in blocked:
                        before.passed_tokens += want.tokens
                    continue
                shortest = want.tokens
            blocked.append(waiting)
            allowance = min(allowance, PATIENCE * want.tokens - waiting.passed_tokens)
        for waiting in settled:
            del self._queue_of(waiting)[waiting]

    def _settle(self, waiting: _Waiting) -> bool:
        """Admit or refuse a sequence; False if it has to wait."""
        try:
            grant = self._grant(waiting.want)
        except (RouterError, AttemptFailed) as error:
            waiting.grant.set_exception(error)
            return True
        if grant is not None:
            waiting.grant.set_result(grant)
        return grant is not None

    def _queue_of(self, waiting: _Waiting) -> dict[_Waiting, None]:
        return self._retries if waiting.want.is_retry else self._new

    def retry_computed(self, tokens: int) -> None:
        """For `AdmissionGrant`."""
        self._retrying -= tokens
        self.admit_waiting()

    def _must_pace(self, want: AdmissionRequest) -> bool:
        """Whether a retry has to wait for others that are being computed."""
        if not want.is_retry or not self._retrying:
            return False
        return self._retrying + want.tokens > self._retry_window()

    def _grant(self, want: AdmissionRequest) -> AdmissionGrant | None:
        if self._must_pace(want) or (route := want.place()) is None:
            return None
        retry_tokens = want.tokens if want.is_retry else 0
        self._retrying += retry_tokens
        return AdmissionGrant(self, route, retry_tokens)
