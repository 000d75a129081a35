"""State table of the sending side of a handoff."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kv_transfer.handoff.state_machine import Table


class Sending(Enum):
    OPEN = auto()  # KV is being computed; no ticket yet
    COMPUTED = auto()  # all KV is computed; no ticket yet
    PUSHING = auto()  # pages are sent as they are computed
    FLUSHING = auto()  # every page was sent; writes are in flight
    CONFIRMING = auto()  # every page was written; the receiver verifies
    DRAINING = auto()  # failed, but writes in flight still read the pages
    ABANDONED = auto()  # drain timeout: the pages are freed although writes are in flight
    CLOSED = auto()


class SendEvent(Enum):
    ATTACH = auto()  # the ticket arrived
    FINISH = auto()  # all KV of the handoff is computed
    IDLE = auto()  # no write of this handoff is in flight
    CONFIRM = auto()  # the receiver verified every page
    REVOKE = auto()  # the receiver aborted
    ABORT = auto()  # this worker aborted
    WRITE_FAILED = auto()
    PEER_LOST = auto()  # the receiver's process has ended, or was declared dead
    DEADLINE = auto()


class SendAction(Enum):
    PUSH = auto()  # write computed pages that have not been sent
    SEND_FINISH = auto()
    SEND_DRAIN = auto()
    HAND_OFF = auto()
    FAIL = auto()


_S, _E, _A = Sending, SendEvent, SendAction

SENDING: Final[Table[Sending, SendEvent, SendAction]] = {
    (_S.OPEN, _E.ATTACH): (_S.PUSHING, (_A.PUSH,)),
    (_S.OPEN, _E.FINISH): (_S.COMPUTED, ()),
    (_S.OPEN, _E.REVOKE): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.OPEN, _E.ABORT): (_S.CLOSED, (_A.FAIL,)),
    (_S.OPEN, _E.DEADLINE): (_S.CLOSED, (_A.FAIL,)),
    #
    (_S.COMPUTED, _E.ATTACH): (_S.FLUSHING, (_A.PUSH,)),
    (_S.COMPUTED, _E.REVOKE): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.COMPUTED, _E.ABORT): (_S.CLOSED, (_A.FAIL,)),
    (_S.COMPUTED, _E.DEADLINE): (_S.CLOSED, (_A.FAIL,)),
    #
    (_S.PUSHING, _E.FINISH): (_S.FLUSHING, (_A.PUSH,)),
    (_S.PUSHING, _E.REVOKE): (_S.DRAINING, ()),
    (_S.PUSHING, _E.ABORT): (_S.DRAINING, ()),
    (_S.PUSHING, _E.WRITE_FAILED): (_S.DRAINING, ()),
    (_S.PUSHING, _E.DEADLINE): (_S.DRAINING, ()),
    (_S.PUSHING, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL,)),
    #
    (_S.FLUSHING, _E.IDLE): (_S.CONFIRMING, (_A.SEND_FINISH,)),
    (_S.FLUSHING, _E.REVOKE): (_S.DRAINING, ()),
    (_S.FLUSHING, _E.ABORT): (_S.DRAINING, ()),
    (_S.FLUSHING, _E.WRITE_FAILED): (_S.DRAINING, ()),
    (_S.FLUSHING, _E.DEADLINE): (_S.DRAINING, ()),
    (_S.FLUSHING, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL,)),
    #
    (_S.CONFIRMING, _E.CONFIRM): (_S.CLOSED, (_A.HAND_OFF,)),
    (_S.CONFIRMING, _E.REVOKE): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.CONFIRMING, _E.ABORT): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.CONFIRMING, _E.DEADLINE): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.CONFIRMING, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL,)),
    #
    (_S.DRAINING, _E.IDLE): (_S.CLOSED, (_A.SEND_DRAIN, _A.FAIL)),
    (_S.DRAINING, _E.REVOKE): (_S.DRAINING, ()),
    (_S.DRAINING, _E.ABORT): (_S.DRAINING, ()),
    (_S.DRAINING, _E.FINISH): (_S.DRAINING, ()),  # the engine has not seen the failure yet
    (_S.DRAINING, _E.WRITE_FAILED): (_S.DRAINING, ()),
    (_S.DRAINING, _E.DEADLINE): (_S.ABANDONED, (_A.FAIL,)),
    (_S.DRAINING, _E.PEER_LOST): (_S.CLOSED, (_A.FAIL,)),
    # The receiver hangs. Since the pages are reused, its writes may carry KV of other requests when it
    # resumes. They land in pages that stay in quarantine until the Drain arrives and are never decoded from.
    (_S.ABANDONED, _E.IDLE): (_S.CLOSED, (_A.SEND_DRAIN,)),
    (_S.ABANDONED, _E.REVOKE): (_S.ABANDONED, ()),
    (_S.ABANDONED, _E.ABORT): (_S.ABANDONED, ()),
    (_S.ABANDONED, _E.FINISH): (_S.ABANDONED, ()),
    (_S.ABANDONED, _E.WRITE_FAILED): (_S.ABANDONED, ()),
    (_S.ABANDONED, _E.DEADLINE): (_S.ABANDONED, ()),
    (_S.ABANDONED, _E.PEER_LOST): (_S.CLOSED, ()),
}
