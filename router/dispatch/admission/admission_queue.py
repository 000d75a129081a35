"""Admission: a sequence is sent to workers when a decode worker has room for it.

If a prompt were prefilled without room for its KV on a decode worker, its handoff would time out after the
first token and the prompt would be recomputed. So sequences wait here, where they hold no resources. Retries
after the loss of a worker go first, limited to a window of tokens: all at once they would delay each other
and all new prompts.
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
    """Room reserved on a decode worker until the sequence is sent."""

    def release(self) -> None: ...


class AdmissionGrant:
    """Admission of one attempt; must be closed when the attempt ends."""

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
        """Take ownership of a claim."""
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
            self._admission.admit_waiting()


@dataclass(slots=True, eq=False)
class _Waiting:
    want: AdmissionRequest
    grant: asyncio.Future[AdmissionGrant]


class Admission:
    """Two FIFO queues, for retries and new sequences. FIFO, so that a large request is not starved."""

    def __init__(
        self,
        has_room: Callable[[AdmissionRequest], bool],
        claim: Callable[[AdmissionRequest], Claim | None],
        retry_window: Callable[[], int],
    ) -> None:
        """`has_room(want)`: whether a decode worker has room; `claim(want)` then reserves it, or returns None
        if nothing is reserved. `retry_window()`: tokens of retries that may be in prefill at a time.
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
        queue = self._retries if want.is_retry else self._new
        queue.append(waiting)
        try:
            async with asyncio.timeout(None if patience_s == math.inf else patience_s):
                return await waiting.grant
        except BaseException:
            if waiting.grant.done() and not waiting.grant.cancelled():
                waiting.grant.result().close()  # granted at the time of the timeout
            else:
                if waiting in queue:
                    queue.remove(waiting)
                self.admit_waiting()  # later ones may fit
            raise

    def admit_waiting(self) -> None:
        """Admit waiting sequences after load has decreased. O(1) if none waits."""
        for queue in (self._retries, self._new):
            while queue:
                if not queue[0].grant.done():  # done: timed out or cancelled; its owner removes it
                    grant = self._grant(queue[0].want)
                    if grant is None:
                        return
                    queue[0].grant.set_result(grant)
                queue.popleft()

    def retry_computed(self, tokens: int) -> None:
        """For `AdmissionGrant`."""
        self._retrying -= tokens
        self.admit_waiting()

    def _grant(self, want: AdmissionRequest) -> AdmissionGrant | None:
        retry_tokens = want.tokens if want.is_retry else 0
        if retry_tokens and self._retrying and self._retrying + retry_tokens > self._retry_window():
            return None
        if not self._has_room(want):
            return None
        self._retrying += retry_tokens
        return AdmissionGrant(self, self._claim(want), retry_tokens)
