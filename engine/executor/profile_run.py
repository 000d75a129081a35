"""Profile runs: what the largest step of a worker takes, before the first request comes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.core.batch.batch import Batch, scratch_batch
from engine.core.largest_step import largest_step
from engine.device.memory import Probe, advising
from engine.executor.graphs.cuda_graphs import GRAPH_BYTES
from engine.executor.hidden_states import Companion
from engine.kv.cache.pool import KVPool
from engine.media.encoder import MediaEncoder
from engine.mixers.attention import AttentionBackend
from engine.modeling.models.base import CausalLM
from engine.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """Computes steps of zeros, whose results nothing reads."""

    model: CausalLM
    sampler: Sampler | None
    """None: the model's hidden states are pooled, and nothing is sampled."""

    @torch.inference_mode()
    def pages_that_fit(
        self,
        config: EngineConfig,
        pool: KVPool,
        attention: AttentionBackend,
        media: MediaEncoder | None,
        companion: Companion | None,
    ) -> int:
        """Measure the memory of the largest step on `pool`, which has no pages. Returns how many would fit.

        Reserves memory for graphs, images and the companion. Raises OutOfDeviceMemory.
        """
        device = torch.device(config.device)
        batch = scratch_batch(
            largest_step(config),
            pool.scratch_page,
            config.page_size,
            device,
            scratch_slot=None if pool.states is None else pool.states.scratch_slot,
            num_groups=len(pool.groups),
        )
        advice = "lower --chunked-prefill-size or --max-running-requests"
        with advising(f"a step of {batch.num_rows} tokens", advice), Probe(device) as probe:
            self.compute(batch, attention, rows=config.max_decode_rows)
        reserve = GRAPH_BYTES if config.cuda_graph_max_batch or config.cuda_graph_max_tokens else 0
        reserve += 0 if media is None else media.reserved_bytes
        page_bytes = pool.page_bytes
        if companion is not None:
            page_bytes += companion.page_bytes
            reserve += companion.other_bytes
        return probe.pages_that_fit(page_bytes, fraction=config.kv_memory_fraction, reserve=reserve)

    @torch.inference_mode()
    def compute(self, batch: Batch, attention: AttentionBackend, *, rows: int) -> None:
        """Compute a step and sample `rows` of it with the options that take the most memory."""
        attention.prepare(batch)
        self.model.expect(batch.num_rows)
        hidden = self.model(batch.input_ids, batch.positions, attention)
        final = hidden[:rows, : self.model.spec.hidden_size].contiguous()
        if self.sampler is not None:
            self.sampler.profile_run(self.model.logits(final))

    @torch.inference_mode()
    def warm_up_sampler(self, rows: int) -> None:
        if self.sampler is None:
            return
        weight = self.model.embed.weight
        hidden = torch.zeros(rows, self.model.spec.hidden_size, dtype=weight.dtype, device=weight.device)
        self.sampler.profile_run(self.model.logits(hidden))
