"""The prefill worker: what its engine needs, and the class of its Ray actor."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig


class PrefillWorker:
    """A worker that computes prompts and sends their KV to decode workers.

    Its Ray actor, which has the same name, is this class and `WorkerActor`. It executes every command, as all
    workers do, so that it can decode when no decode worker is left.
    """

    @staticmethod
    def engine(config: EngineConfig) -> EngineConfig:
        """Its configuration in a cluster with decode workers: no CUDA graphs of decode batches, since every
        step has prompts."""
        return replace(config, cuda_graph_max_batch=0)
