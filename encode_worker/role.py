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
        """Its configuration: the vision model, and what answers health probes."""
        return replace(
            config,
            vision_model_only=True,
            num_pages=_PAGES,
            scheduler=replace(config.scheduler, speculation=None),
            quantization=None,
            fp8_kv=False,
            tensor_parallel_size=1,
            expert_parallel_size=1,
            return_routed_experts=False,
            lora=None,
            cuda_graph_max_batch=0,
            cuda_graph_max_tokens=0,
        )


_PAGES = 256
