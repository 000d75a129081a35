"""State table of the receiving side of a handoff.

Invariant: pages leave quarantine (FREE_PAGES) only after the sender's Drain, after the end of the sender's
process, or after this worker closed every connection and registration. A deadline or a third party's report
never frees them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kv_transfer.handoff.state_machine import Table


class Receiving(Enum):
    RESERVED = auto()  # pages are reserved; nothing received yet
    FILLING = auto()  # the sender is writing
    READY = auto()  # every page has arrived and is verified; the request owns them
    DRAINING = auto()  # failed, but the sender may still write: pages must not be reused
    CLOSED = auto()


class ReceiveEvent(Enum):
    PUSH = auto()  # pages were written
    FINISH = auto()  # all pages were written, and every check passed
    MISMATCH = auto()  # all pages were written, but a check failed
    DRAIN = auto()  # the sender will never write again
    ABORT = auto()  # this worker aborted
    PEER_LOST = auto()  # the sender's process has ended, and with it all its writes
    CUT_OFF = auto()  # this worker closed every connection and registration: no write can land
    DEADLINE = auto()


class ReceiveAction(Enum):
    SEND_CONFIRM = auto()
    SEND_REVOKE = auto()
    ACCEPT = auto()  # report the handoff as ready
    FAIL = auto()  # report it as failed; its pages are now in quarantine
    FREE_PAGES = auto()  # report that the pages can be reused


_S, _E, _A = Receiving, ReceiveEvent, ReceiveAction

RECEIVING: Final[Table[Receiving, ReceiveEvent, ReceiveAction]] = {
    (_S.RESERVED, _E.PUSH): (_S.FILLING, ()),
    (_S.RESERVED, _E.FINISH): (_S.READY, (_A.SEND_CONFIRM, _A.ACCEPT)),
    (_S.RESERVED, _E.MISMATCH): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    (_S.RESERVED, _E.DRAIN): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.RESERVED, _E.ABORT): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    (_S.RESERVED, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.RESERVED, _E.CUT_OFF): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.RESERVED, _E.DEADLINE): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    #
    (_S.FILLING, _E.PUSH): (_S.FILLING, ()),
    (_S.FILLING, _E.FINISH): (_S.READY, (_A.SEND_CONFIRM, _A.ACCEPT)),
    (_S.FILLING, _E.MISMATCH): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    (_S.FILLING, _E.DRAIN): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.FILLING, _E.ABORT): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    (_S.FILLING, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.FILLING, _E.CUT_OFF): (_S.CLOSED, (_A.FAIL, _A.FREE_PAGES)),
    (_S.FILLING, _E.DEADLINE): (_S.DRAINING, (_A.FAIL, _A.SEND_REVOKE)),
    #
    (_S.DRAINING, _E.DRAIN): (_S.CLOSED, (_A.FREE_PAGES,)),
    (_S.DRAINING, _E.ABORT): (_S.DRAINING, ()),
    (_S.DRAINING, _E.PEER_LOST): (_S.CLOSED, (_A.FREE_PAGES,)),
    (_S.DRAINING, _E.CUT_OFF): (_S.CLOSED, (_A.FREE_PAGES,)),
    (_S.DRAINING, _E.DEADLINE): (_S.DRAINING, (_A.SEND_REVOKE,)),  # repeat until answered
}
