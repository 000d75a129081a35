"""Admission: a sequence is sent to workers when there is room to decode it.

A prompt prefilled while no decode worker has room for its KV would produce one token, then time out and be
computed again. So it waits here, where it holds no resources. Retries after a lost worker go first, a few at
a time: all at once they would delay each other and all prompts behind them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Admission", "AdmissionGrant", "AdmissionRequest", "Claim"]


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A sequence that waits for admission."""

    tokens: int
    avoid: Set[str] = frozenset()
    """Workers to avoid."""
    is_retry: bool = False


class Claim(Protocol):
    """Room on a decode worker, reserved for a sequence until it is sent there."""

    def release(self) -> None: ...


class AdmissionGrant:
    """Admission of one attempt; to be closed when the attempt is over."""

    __slots__ = ("_admission", "_claim", "_retry_tokens")

    def __init__(self, admission: Admission, claim: Claim | None, retry_tokens: int) -> None:
        self._admission = admission
        self._claim = claim
        self._retry_tokens = retry_tokens

    def __enter__(self) -> AdmissionGrant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hold(self, claim: Claim) -> None:
        """Take ownership of a claim made when the workers were chosen."""
        self.release_claim()
        self._claim = claim

    def release_claim(self) -> None:
        """Release the claim: the request now counts as load of its decode worker."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    def computed(self) -> None:
        """The prompt is computed. Idempotent."""
        if self._retry_tokens:
            tokens, self._retry_tokens = self._retry_tokens, 0
            self._admission.retry_computed(tokens)

    def close(self) -> None:
        had_claim = self._claim is not None
        self.release_claim()
        self.computed()
        if had_claim:
            self._admission.look()


@dataclass(slots=True, eq=False)
class _Waiting:
    want: AdmissionRequest
    turn: asyncio.Future[AdmissionGrant]


class Admission:
    """Two FIFO queues, retries and new sequences: small requests do not overtake a large one."""

    def __init__(
        self,
        has_room: Callable[[AdmissionRequest], bool],
        claim: Callable[[AdmissionRequest], Claim | None],
        retry_window: Callable[[], int],
    ) -> None:
        """`has_room(want)`: whether a sequence could be decoded now; `claim(want)` then keeps that room,
        None where nothing is kept. `retry_window()`: tokens of retries that may be computed at a time.
        """
        self._has_room = has_room
        self._claim = claim
        self._retry_window = retry_window
        self._retries: deque[_Waiting] = deque()
        self._new: deque[_Waiting] = deque()
        self._retrying = 0
        """Tokens of retries that are being computed."""

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return len(self._retries) + len(self._new)

    def try_admit(self, want: AdmissionRequest) -> AdmissionGrant | None:
        """Admit a sequence without waiting; None if it must wait. O(workers)."""
        if self._retries or (self._new and not want.is_retry):
            return None
        return self._grant(want)

    async def wait(self, want: AdmissionRequest, patience_s: float) -> AdmissionGrant:
        """Wait for admission. Raises TimeoutError after `patience_s`."""
        waiting = _Waiting(want, asyncio.get_running_loop().create_future())
        line = self._retries if want.is_retry else self._new
        line.append(waiting)
        try:
            async with asyncio.timeout(None if patience_s == math.inf else patience_s):
                return await waiting.turn
        except BaseException:
            if waiting.turn.done() and not waiting.turn.cancelled():
                waiting.turn.result().close()  # granted at the time of the timeout
            else:
                if waiting in line:
                    line.remove(waiting)
                self.look()  # later ones may fit
            raise

    def look(self) -> None:
        """Admit waiting sequences after load has decreased. Costs nothing if none waits."""
        for line in (self._retries, self._new):
            while line:
                if not line[0].turn.done():  # else it is about to leave the queue
                    turn = self._grant(line[0].want)
                    if turn is None:
                        return
                    line[0].turn.set_result(turn)
                line.popleft()

    def retry_computed(self, tokens: int) -> None:
        """For `AdmissionGrant`."""
        self._retrying -= tokens
        self.look()

    def _grant(self, want: AdmissionRequest) -> AdmissionGrant | None:
        retry_tokens = want.tokens if want.is_retry else 0
        if retry_tokens and self._retrying and self._retrying + retry_tokens > self._retry_window():
            return None
        if not self._has_room(want):
            return None
        self._retrying += retry_tokens
        return AdmissionGrant(self, self._claim(want), retry_tokens)
