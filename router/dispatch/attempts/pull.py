"""Cached KV that one worker sends to another before that computes the rest of a prompt."""

from __future__ import annotations

import secrets

from router.dispatch.routing.route import CachedElsewhere, OnTransfer
from router.dispatch.waterfall import busy_seconds
from router.dispatch.workers.events import Message, SessionListener, WorkerLost
from rpc.baton.v1 import worker_pb2


class Pull:
    """The source's part of an attempt. Whatever becomes of it, the receiver computes what it lacks."""

    def __init__(self, source: CachedElsewhere, receiver: str, on_transfer: OnTransfer) -> None:
        """`receiver`: key of its session."""
        self._source = source
        self._receiver = receiver
        self._on_transfer = on_transfer
        self._id = secrets.randbits(64)
        source.session.listen(self._id, SessionListener(self._on_event, lambda _output, _at: None))

    def request(self) -> worker_pb2.Pull:
        """For the command to the receiver, which answers with Wanted."""
        peer = self._source.session.info.peer
        return worker_pb2.Pull(handoff_id=self._id, source=peer, num_tokens=self._source.num_tokens)

    def share(self, ticket: worker_pb2.Ticket, work: worker_pb2.Work) -> None:
        """Pass the receiver's ticket to the source, with what names the prefix."""
        if ticket.handoff_id == self._id and self._source.session.alive:
            end = ticket.num_tokens + 1
            share = worker_pb2.Share(
                ticket=ticket,
                tokens=work.prompt[:end],
                keys=work.prompt_keys[:end],
                namespace=work.namespace,
            )
            self._source.session.send(worker_pb2.Command(share=share))

    def end(self) -> None:
        """Ignore the source from now on."""
        self._source.session.forget(self._id)

    def _on_event(self, message: Message | WorkerLost, at: float) -> None:
        if isinstance(message, worker_pb2.HandedOff):
            seconds = busy_seconds((push.begin_s, push.end_s) for push in message.pushes)
            self._on_transfer(self._source.session.key, self._receiver, message.bytes, seconds)
