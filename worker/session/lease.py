"""A router's lease on its session: a router that is silent for too long loses its requests here.

The kernel reports the end of a router's process at once, but not that it is stopped, or hangs. Its requests
would hold their pages, and delay those of other routers.
"""

from __future__ import annotations

from typing import Final

from rpc.session import LEASE_S

TURN_S: Final = 0.5
"""Interval of calls of `passed`."""
_LONGEST_TURN_S: Final = 1.0


class Lease:
    """Counts silence. A turn counts at most `_LONGEST_TURN_S`, however long it took: while the worker itself
    is stopped, its routers must not appear silent.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s: Final = lease_s
        self._silent_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Stays so: a router that continues opens another session."""
        return self._silent_s >= self.lease_s

    def heard(self) -> None:
        """Record a command or heartbeat. No effect after the end."""
        if not self.has_ended:
            self._silent_s = 0.0

    def passed(self, seconds: float) -> None:
        """Record a turn of `seconds`."""
        self._silent_s += min(max(seconds, 0.0), _LONGEST_TURN_S)
