"""The service level objective by which an answer counts as good."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Upper bounds in seconds; None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    pause_s: float | None = None
    """Longest time between two tokens."""

    def is_met(self, *, ttft: float, tpot: float, longest_pause: float) -> bool:
        return (
            (self.ttft_s is None or ttft <= self.ttft_s)
            and (self.tpot_s is None or tpot <= self.tpot_s)
            and (self.pause_s is None or longest_pause <= self.pause_s)
        )
