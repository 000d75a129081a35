"""What goes wrong at a fake worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpc.baton.v1 import worker_pb2


@dataclass
class Behaviour:
    """What goes wrong. Counts are of tokens in one attempt."""

    break_after: int | None = None
    """Cancel the session after this number of tokens."""
    fail_after: int | None = None
    fail_code: worker_pb2.FailureCode = worker_pb2.FAILURE_CODE_HANDOFF
    times: int = 1
    """How often; later attempts go well."""
    token_s: float = 0.0
    silent: bool = False
    """Takes commands, answers nothing."""
    dumb: bool = False
    """As a process that was stopped: the connection stands, and nothing comes."""
    stalled: bool = False
    """What it has to say, and its answers to calls, come when this is over."""
    mute: bool = False
    """What it has to say comes when this is over; it answers calls meanwhile."""
    closed: bool = False
    """Calls fail, as if nothing listened on the port."""
    stop_at_first: bool = False
    """The first token ends the sequence."""
    late_first_token: bool = False
    """Prefill: the first token is reported long after the decode worker's."""
    refuse_reservation: bool = False
    waits_before: set[str] = field(default_factory=set)
    """Steps at which the worker waits while they are in this set: start, token, reserve, transfer, decode."""

    def strikes(self, tokens: int, threshold: int | None) -> bool:
        if threshold is None or tokens < threshold or self.times <= 0:
            return False
        self.times -= 1
        return True
