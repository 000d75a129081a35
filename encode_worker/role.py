"""The encode worker: what its engine needs, and the class of its Ray actor."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig


class EncodeWorker:
    """A worker that encodes images, whose rows other workers fetch.

    Its Ray actor, which has the same name, is this class and `WorkerActor`. It executes every command, as all
    workers do.
    """

    @staticmethod
    def engine(config: EngineConfig) -> EngineConfig:
        """Its configuration: a KV pool for health probes alone, and no CUDA graphs."""
        return replace(
            config,
            num_pages=_PAGES,
            cuda_graph_max_batch=0,
            cuda_graph_max_tokens=0,
        )


_PAGES = 256
