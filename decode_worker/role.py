"""The decode worker: the class of its Ray actor."""

from __future__ import annotations


class DecodeWorker:
    """A worker that receives KV and decodes answers; in mixed mode, it computes the prompts too.

    Its Ray actor, which has the same name, is this class and `WorkerActor`. It has the default configuration.
    """
