"""The receiver's side of a handoff, as a table.

Its one promise: the pages leave quarantine (FREE_PAGES) only when the sender said that it will never
write them again, when the sender's process is gone, or when nobody can reach this worker's memory any more.
No deadline does that, and no third party's word; time alone proves nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kv_transfer.handoff.state_machine import Table

__all__ = ["RECEIVING", "ReceiveAction", "ReceiveEvent", "Receiving"]


class Receiving(Enum):
    RESERVED = auto()  # pages set aside, nothing heard from the sender yet
    FILLING = auto()  # the sender is writing
    READY = auto()  # every page is here and verified; the pages belong to the request
    DRAINING = auto()  # given up, but the sender may still write: the pages must not be reused
    CLOSED = auto()


class ReceiveEvent(Enum):
    PUSH = auto()  # some pages were written
    FINISH = auto()  # all pages were written, and every check passed
    MISMATCH = auto()  # the sender says all pages were written, and a check failed
    DRAIN = auto()  # the sender will never write again
    ABORT = auto()  # this worker gave up
    PEER_LOST = auto()  # the sender's process is gone, and every write with it
    CUT_OFF = auto()  # this worker closed every connection and registration: no write of anyone's can land
    DEADLINE = auto()


class ReceiveAction(Enum):
    SEND_CONFIRM = auto()
    SEND_REVOKE = auto()
    ACCEPT = auto()  # report the handoff as ready
    FAIL = auto()  # report it as failed: the pages are in quarantine from here on
    FREE_PAGES = auto()  # report that the pages are not written any more


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
    (_S.DRAINING, _E.DEADLINE): (_S.DRAINING, (_A.SEND_REVOKE,)),  # ask again, for as long as it takes
}
