"""Rows of numbers beside the tokens of a sequence, ordered by position whichever worker has sent them."""

from __future__ import annotations

from rpc.baton.v1 import worker_pb2


class RowOrder:
    """Reorders the rows of `Output.routed_experts`, and drops those that are known.

    During a handoff or a move, two workers send rows of one sequence, and their messages are not ordered
    relative to each other. A later attempt is told how many are known.
    """

    def __init__(self) -> None:
        self.known = 0
        """Rows that have been taken."""
        self._early: list[worker_pb2.Output] = []

    def take(self, output: worker_pb2.Output) -> list[worker_pb2.Output]:
        """The rows that are now in order."""
        self._early.append(output)
        ready: list[worker_pb2.Output] = []
        for early in sorted(self._early, key=lambda one: one.routed_experts.position):
            rows = early.routed_experts
            if rows.position > self.known:
                break
            self._early.remove(early)
            if rows.position + rows.count > self.known:
                ready.append(_from(early, self.known - rows.position))
                self.known = rows.position + rows.count
        return ready


def _from(output: worker_pb2.Output, first: int) -> worker_pb2.Output:
    if not first:
        return output
    part = worker_pb2.Output()
    part.CopyFrom(output)
    rows = part.routed_experts
    rows.rows = rows.rows[first * len(rows.rows) // rows.count :]
    rows.position, rows.count = rows.position + first, rows.count - first
    return part
