"""Error for commands that a worker rejects."""

from __future__ import annotations

from rpc.baton.v1 import worker_pb2


class CommandRefused(Exception):
    """The command is rejected; its request fails with `code`."""

    def __init__(self, code: worker_pb2.FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code
