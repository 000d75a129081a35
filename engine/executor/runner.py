"""Runs steps on the device: plan in, tokens out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from common.progress import Progress, silent
from common.sidecars import KINDS, SidecarKind
from engine.config import EngineConfig
from engine.core.batch.batch import Batch, BatchBuilder
from engine.core.batch.step_inputs import StepInputs, StepWriter
from engine.core.largest_step import most_rows
from engine.core.plan import StepPlan
from engine.core.weights import NewWeights, WeightsIdentity
from engine.device.allocations import reserve_pinned_memory
from engine.device.compute_threads import ComputeThreads, compute_threads
from engine.device.current import enter_device
from engine.device.memory import advising
from engine.device.staging import Readback
from engine.errors import EngineError
from engine.executor.adapters import RunnerAdapters
from engine.executor.device_step import DeviceStep, Enqueued, EnqueuingStep, Pause
from engine.executor.expert_load import ExpertLoad
from engine.executor.forward import Eager, Forward, busy
from engine.executor.graphs.capture import captured_forwards
from engine.executor.hidden_states import Companion, HiddenStates
from engine.executor.kernels_ahead import kernels_ahead
from engine.executor.pooler import Pooler
from engine.executor.profile_run import ProfileRun
from engine.executor.rank_weights import RankWeights
from engine.kernels.compiler_hooks import watch_compilers
from engine.kv.cache.pool import KVPool
from engine.kv.cache.slot_count import share_out, wanted_slots
from engine.media.encoder import MediaEncoder
from engine.media.probe_decoder import probe_decoder
from engine.media.rank_media import RankMedia
from engine.media.step_media import StepMedia
from engine.mixers.attention import AttentionBackend, attention_for
from engine.mixers.recurrence.select import with_states
from engine.mixers.recurrence.stateful_attention import StatefulAttention
from engine.model_config.errors import WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.chosen_experts import ChosenExperts
from engine.modeling.layers.linear.panels import only_panels
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import SINGLE_RANK, Communicator
from engine.parallel.step_channel import StepChannel
from engine.sampling.sampler import Sampler
from engine.sampling.scoring import Scored, logit_blocks, score
from engine.sampling.token_masks import constrained_rows, masks_of

_MOST_READ_AGAIN: Final = 32_768
"""Tokens of context: 4 GB of an 8B model's KV take an H200 a millisecond."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step whose inputs are on the device and whose first kernel is not enqueued yet."""

    forward: Forward
    batch: Batch
    plan: StepPlan
    scored: Scored
    media: StepMedia


class ModelRunner:
    """Owns the weights, the KV pool and every other tensor of a worker, or of one of its ranks."""

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress = silent,
        communicator: Communicator = SINGLE_RANK,
        companion: Companion | None = None,
        spec: ModelSpec | None = None,
    ) -> None:
        """`spec`: of a head in the checkpoint, which is run in place of the model.

        With several ranks, all build their runners at the same time: they size the KV pool together.

        Makes the device current for the calling thread. Any other thread that uses the runner must do so too.
        """
        self._config = config
        self._device = enter_device(config.device)
        if self._device.type == "cuda":
            watch_compilers()
        self.communicator = communicator
        self._step_channel = StepChannel(communicator)
        self._threads: ComputeThreads | None = compute_threads() if self._device.type == "cpu" else None
        described = ModelSpec.from_folder(config.model_path, config.model_impl) if spec is None else spec
        if spec is None and config.pooling is not None:
            described = spec = described.without_vocabulary()
        if config.vision_model_only:
            described = probe_decoder(described)
        self._weights = RankWeights(config, communicator)
        with (
            kernels_ahead(config, described, self._device, progress),
            only_panels(config.reproducible),
            advising("the weights", "use a smaller model, or more ranks (--tensor-parallel-size)"),
        ):
            self._model = load_model(
                config.model_path,
                device=config.device,
                dtype=config.dtype,
                load_format=config.decoder_load_format,
                seed=config.seed,
                quantization=config.quantization,
                context=config.max_model_len,
                expert_parallel_size=config.expert_parallel_size,
                progress=progress,
                communicator=communicator,
                spec=described,
            )
        self._pooler: Pooler | None = None
        if config.pooling is not None:
            self._pooler = Pooler.load(config, config.pooling, self._model)
        self._sum_size = 0 if config.sums is None else config.page_size
        self.adapters: RunnerAdapters | None = None
        if config.lora is not None:
            with only_panels(config.reproducible):
                self.adapters = RunnerAdapters(self._model, config.lora, communicator, self._step_channel)
        self._images = RankMedia(config, self._model, self._device, communicator)
        self._companion = companion
        self._hidden_states: HiddenStates | None = None
        if companion is not None:
            companion.adapt(self._model)
        self.spec: ModelSpec = self._model.spec
        """Spec of the whole model."""
        self.expert_load = ExpertLoad(self._model, self._device)
        self._chosen: ChosenExperts | None = None
        if config.return_routed_experts:
            self._chosen = ChosenExperts(self._model, self.spec, most_rows(config), self._device)
        self._fp8_kv = self._weights.fp8_kv(self.spec)
        self._sampler = Sampler(
            vocab_size=self.spec.vocab_size,
            eos_token_ids=self.spec.eos_token_ids,
            max_requests=config.scheduler.max_running_requests,
            max_rows=config.max_decode_rows,
            max_edited_drafts=config.max_edited_drafts or 0,
            device=self._device,
            processed_logprobs=config.processed_logprobs,
        )
        profile = ProfileRun(self._model, None if self._pooler is not None else self._sampler)
        progress("Sizing the KV pool", 0, 0)
        # Page ids are the same on all ranks, so the rank with the least memory decides.
        num_pages, slots = config.num_pages, 0
        if self.spec.recurrent is not None:
            slots = wanted_slots(config.num_state_slots, config.scheduler.max_running_requests)
        if not num_pages:
            num_pages, slots = self._pages_and_slots_that_fit(config, slots, profile)
        self.num_state_slots = communicator.all_reduce_min(slots)
        """0 for models without a recurrent state."""
        self.kv = self._pool(config, communicator.all_reduce_min(num_pages), self.num_state_slots)
        self._steps = StepWriter(config.scheduler.max_running_requests, adapters=config.lora is not None)
        self._batches = BatchBuilder(
            page_size=config.page_size,
            max_requests=config.scheduler.max_running_requests,
            max_model_len=config.max_model_len,
            scratch_page=self.kv.scratch_page,
            device=self._device,
            groups=self.kv.groups,
        )
        attention = self._attention_over(self.kv, config)
        self._states = attention if isinstance(attention, StatefulAttention) else None
        if config.num_pages and self._device.type == "cuda":  # otherwise measuring the largest step did
            profile.warm_up_sampler(config.max_decode_rows)
        if self._device.type == "cuda":
            reserve_pinned_memory()
        self._forwards = self._forward_paths(attention, config, progress)
        """The first that fits a batch computes it."""
        # The token last sampled for each slot. The next step reads it here, so that it can be enqueued
        # before the host knows what was sampled.
        self._last_tokens = torch.zeros(
            config.scheduler.max_running_requests, dtype=torch.int64, device=self._device
        )

    @property
    def num_pages(self) -> int:
        return self.kv.num_pages

    @property
    def sidecars(self) -> Sequence[SidecarKind]:
        if self._config.sums is not None:
            return (self._config.sums,)
        return KINDS if self._chosen is None else (*KINDS, self._chosen.kind)

    def pages_of_slot(self, slot: int) -> Sequence[int]:
        return self.kv.blocks_of(slot)

    @property
    def weights(self) -> WeightsIdentity:
        """See `RankWeights.identity`."""
        return self._weights.identity

    @property
    def shape(self) -> str:
        """Identity of what stays when weights are replaced, the same on all ranks."""
        return self._weights.shape(self.spec)

    def refill(self, new: NewWeights) -> None:
        """Overwrite the weights in place, while no step is in flight. Other ranks do so when rank 0 does.

        Raises RefillRefused or WeightsIncomplete: see `RankWeights.refill`.
        """
        self._step_channel.send_order(new)
        if self._threads is not None:
            self._threads.adapt()
        media, problem = None, ""
        try:
            media = self._images.opened(new.checkpoint)
        except WeightsError as error:
            problem = str(error)
        with only_panels(self._config.reproducible):
            self._weights.refill(self._model, new, problem)
        self._images.encoder = media

    @property
    def model(self) -> CausalLM:
        return self._model

    @property
    def media(self) -> MediaEncoder | None:
        """Encodes images, on rank 0; None: they are refused."""
        return self._images.encoder

    def show(self, to: HiddenStates) -> None:
        """From now on, show the hidden states of every step to the model's companion."""
        self._hidden_states = to

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> PreparedStep:
        """Copy a step's inputs, plan its attention. A step must be launched before the next is prepared."""
        if self._hidden_states is not None:
            self._hidden_states.planned(plan)
        if plan.fillings and self.adapters is not None:
            self.adapters.fill(plan.fillings)
        media = self._images.of(plan)
        inputs = media.sent_with(self._steps.write(plan, by_rows=not self._is_long(plan)))
        self._step_channel.send(inputs)
        self._images.share(media)
        scored = Scored.of(plan.chunks, self._sum_size)
        return PreparedStep(*self._prepared(inputs, media), plan, scored, media)

    def launch(self, step: PreparedStep) -> DeviceStep:
        """Enqueue the first part of a step; `StepInFlight.proceed` enqueues the rest. Never blocks."""
        self.expert_load.on_step()
        return DeviceStep(self._enqueue(step), step.plan, step.scored, step.media)

    def execute_step(self, inputs: StepInputs) -> None:
        """On ranks other than 0: compute a step that rank 0 has prepared. Only rank 0 samples."""
        for _ in self._enqueue_part(inputs):
            pass

    @torch.inference_mode()
    def _enqueue(self, step: PreparedStep) -> EnqueuingStep:
        batch = step.batch
        hidden = self._shown(batch, (yield from busy(step.forward.run(batch))))
        routed = [] if self._chosen is None else [self._chosen.of(batch.num_rows)]
        scores = list[torch.Tensor](routed)
        if step.scored and self._pooler is not None:
            scores += [self._pooler(hidden, batch.scored_rows, step.scored)]
        elif step.scored:
            blocks = logit_blocks(self._model.logits, hidden, batch.scored_rows)
            scores += score(blocks, *step.scored.targets(self._device), step.scored.num_top).tensors()
        sampling = step.plan.sampling()  # only now: the device is busy meanwhile
        if not sampling:
            return Enqueued(Readback(scores, self._device), is_routed=bool(routed))
        logits = self._model.logits(hidden[batch.sample_rows])
        masks = None
        if rows := constrained_rows(sampling):
            yield Pause.OUTPUT  # the device computes all of the above meanwhile
            masks = masks_of(sampling, rows, self.spec.vocab_size)
        sampled = self._sampler.sample(logits, sampling, masks)
        self._take_tokens(batch, sampled.tokens)
        errors: dict[int, EngineError] = {} if masks is None else {**masks.errors}
        return Enqueued(Readback([*scores, *sampled.tensors()], self._device), errors, bool(routed))

    @torch.inference_mode()
    def _enqueue_part(self, inputs: StepInputs) -> Generator[None, None, None]:
        forward, batch = self._prepared(inputs, self._images.received(inputs.media))
        hidden = yield from forward.run(batch)
        if self._pooler is not None:
            return
        for _ in logit_blocks(self._model.logits, hidden, batch.scored_rows):
            pass
        if not len(batch.sample_rows):
            return
        self._model.logits(hidden[batch.sample_rows])
        self._take_tokens(batch, torch.empty_like(batch.sample_slots))

    def _take_tokens(self, batch: Batch, tokens: torch.Tensor) -> None:
        """Keep what rank 0 has sampled for the next step, and the states after right drafts."""
        self.communicator.broadcast(tokens)
        self._last_tokens[batch.sample_slots] = tokens
        if self._states is not None and batch.verified is not None:
            self._states.keep(batch.verified.accepted(batch.input_ids, tokens))

    def _prepared(self, inputs: StepInputs, media: StepMedia) -> tuple[Forward, Batch]:
        if self._threads is not None:
            self._threads.adapt()
        num_rows = len(inputs.input_ids)
        paths = self._forwards if media.rows is None else self._forwards[-1:]
        forward = next(path for path in paths if path.fits(inputs.num_chunks, num_rows))
        batch = media.joined(self._batches.build(inputs, forward.place(num_rows)))
        if len(batch.pending_rows):
            batch.input_ids[batch.pending_rows] = self._last_tokens[batch.pending_slots]
        if self._hidden_states is not None:
            self._hidden_states.before(batch)
        forward.prepare(batch)
        return forward, batch

    def _shown(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """The final hidden states among those that the model returned, which the companion sees too."""
        if self._companion is None:
            return hidden
        final = self.spec.hidden_size
        if self._hidden_states is not None:
            self._hidden_states.after(batch, hidden[: batch.num_rows])
        return hidden[:, :final]

    def _is_long(self, plan: StepPlan) -> bool:
        """Whether a GPU would take longer to read contexts again for each drafted token than to run verify
        chunks through the kernels of prompts. Those cannot leave a recurrent state behind any of their rows.
        """
        if not plan.num_drafted or self._device.type == "cpu" or self._states is not None:
            return False
        return sum(len(chunk.draft) * chunk.end for chunk in plan.chunks) > _MOST_READ_AGAIN

    def close(self) -> None:
        """Free the device's memory. Neither this runner nor those of other ranks can be used afterwards."""
        if self.adapters is not None:
            self.adapters.close()
        # Graphs first: NCCL does not release a communicator that a captured graph uses.
        del self._forwards, self._model, self.kv
        self._step_channel.close()
        self.communicator.close()

    # -------------------------------------------------------------------------------------- set-up

    def _pool(self, config: EngineConfig, num_pages: int, num_slots: int = 0) -> KVPool:
        tokens = num_pages * config.page_size
        with advising(f"a KV pool of {tokens} tokens", "lower --kv-pool-tokens or --kv-memory-fraction"):
            return KVPool(
                num_pages=num_pages,
                groups=self._model.part.kv_groups,
                num_kv_heads=self._model.part.num_kv_heads,
                head_dim=self.spec.head_dim,
                page_size=config.page_size,
                dtype=self._model.embed.weight.dtype,
                device=self._device,
                recurrent=self._model.part.recurrent,
                num_slots=num_slots,
                fp8=self._fp8_kv,
            )

    def _attention_over(
        self, pool: KVPool, config: EngineConfig, name: str | None = None
    ) -> AttentionBackend:
        attention = attention_for(
            name or config.attention_backend,
            pool,
            self._model.part.num_heads,
            self._model.layer_attention(),
            max_requests=config.max_decode_rows,
            max_context=config.max_model_len,
        )
        if pool.states is None:
            return attention
        rows = config.max_decode_rows if config.scheduler.speculation is not None else 0
        return with_states(attention, pool.states, pool.dtype, max_verified=rows)

    @torch.inference_mode()
    def _pages_and_slots_that_fit(
        self, config: EngineConfig, wanted_slots: int, profile: ProfileRun
    ) -> tuple[int, int]:
        """See `ProfileRun`."""
        if self._device.type != "cuda":
            raise EngineError("num_pages must be given: the pool sizes itself on a GPU only")
        pool = self._pool(config, 0)
        attention = self._attention_over(pool, config)
        blocks = profile.pages_that_fit(config, pool, attention, self.media, self._companion)
        return share_out(blocks, pool.slot_blocks, wanted_slots) if wanted_slots else (blocks, 0)

    @advising("CUDA graphs", "lower --kv-memory-fraction, --cuda-graph-max-bs or --cuda-graph-max-tokens")
    @torch.inference_mode()
    def _forward_paths(
        self, attention: AttentionBackend, config: EngineConfig, progress: Progress
    ) -> list[Forward]:
        captured = captured_forwards(self._model, attention, config, self.kv, self.communicator, progress)
        masked = (vision := self._images.vision) is not None and vision.bidirectional
        return [
            *captured,
            Eager(self._model, attention, self._attention_over(self.kv, config, "torch") if masked else None),
        ]
