"""Configuration of an engine: complete and validated. Nothing is read from the environment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final, Literal

from common.sidecars import SidecarKind, pooled_sums
from engine.model_config.model_impl import ModelImpl
from engine.model_config.pooling_spec import PoolingSpec
from engine.speculation.kinds import DrafterKind

PATIENCE: Final = 64.0
"""Default of `SchedulerConfig.prompt_patience`."""
STEP_SHARE: Final = 0.96
"""Share of `tpot_target_s` at which the mean of all steps is held: measured steps vary by a few percent."""
_PAUSE_SHARE: Final = 1.6
"""Default of `pause_target_s`, in units of `tpot_target_s`. Simulated goodput is the same from 1.3 to 2.5 and
lower at 5 (`benchmarks.simulate --cluster --pause-ms`)."""
_EDITED_DRAFTS: Final = 256
"""Most of `EngineConfig.max_edited_drafts` on a GPU."""
_LONG_PREFILL_SHARE: Final = 0.04
"""Share of the context that `long_prefill_token_threshold="auto"` means (vLLM)."""


class Batching(Enum):
    """Which requests share a step."""

    MIXED = "mixed"
    """Decodes and prefill chunks share one forward pass."""
    PREFILL_FIRST = "prefill-first"
    """A step is either all prefill or all decodes; prefill repeats until no prompt can be computed."""
    ALTERNATING = "alternating"
    """A step is either all prefill or all decodes, in turn: one iteration is two steps."""


class Policy(Enum):
    """Order in which waiting requests are admitted."""

    SHORTEST = "shortest"
    """Shortest remaining prefill first, aged by `SchedulerConfig.prompt_patience`."""
    FCFS = "fcfs"
    """First come, first served."""
    LPM = "lpm"
    """Longest prefix match first."""
    LOF = "lof"
    """Longest output first."""
    DFS_WEIGHT = "dfs-weight"
    """Requests that share a cached subtree together (SGLang)."""
    RANDOM = "random"
    PRIORITY = "priority"
    """Order by `Request.priority`; ties in order of arrival."""
    DEADLINE = "deadline"
    """Earliest TTFT deadline first; requests without one last, in order of arrival."""


class Victim(Enum):
    """Which running request is preempted (retracted) first when pages run out."""

    LAST_ADMITTED = "last-admitted"
    LEAST_OUTPUT = "least-output"
    """Fewest output tokens; of those, the longest prompt (SGLang)."""


class Forecast(Enum):
    """How many pages admission leaves to the requests that run."""

    PEAK = "peak"
    """What they need at the worst moment, by the observed lengths of outputs."""
    NEW_TOKEN_RATIO = "new-token-ratio"
    """A share of the output tokens that they may still produce; it decays until a request is retracted."""
    NONE = "none"
    """None: a request is admitted if its prompt fits now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Drafted tokens that steps verify beside decodes. They change no token."""

    drafters: frozenset[DrafterKind] = frozenset(DrafterKind)
    num_draft_tokens: int = 16
    """Most drafted tokens of one request and step."""
    adaptive: bool = True
    """False: draft as many as there are, whatever steps take."""
    max_rows: int | None = None
    """Decodes and drafts of a step at most; None: no limit."""
    earlier_tokens: int = 100_000
    """Earlier answers kept for each tenant, in tokens, for the drafter "suffix"."""
    model_path: Path | None = None
    """Folder of the draft model or head, for the drafter "model"; None: there is none."""
    reserves: bool = True
    """False: drafts fit the rows and the memory of steps without drafts."""
    mtp: bool = False
    """The drafter "model" is the head for multi-token prediction in the model's own checkpoint."""

    def __post_init__(self) -> None:
        if self.num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens {self.num_draft_tokens}: use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """All that the scheduler decides by. Raises ValueError for what cannot work."""

    policy: Policy = Policy.SHORTEST
    batching: Batching = Batching.MIXED
    max_running_requests: int = 256
    max_waiting_requests: int = 4096

    chunk_budget: int | None = 512
    """Tokens that a step may compute, decodes included. None: without a limit of its own, so with chunked
    prefill off a step takes prompts of as many tokens as the context."""
    chunked_prefill: bool = True
    """False: a prompt is computed in one step, and waits until a step has room for all of it."""
    max_prefill_tokens: int | None = None
    """Prefill tokens of a step. With chunked prefill off, the first prompt of a step may be longer."""
    long_prefill_token_threshold: int | Literal["auto"] | None = None
    """At most this many tokens of one prompt a step; "auto": 4% of the context."""
    max_partial_prefills: int | None = None
    """Prompts that may be partly computed at the end of a step; 1: one chunked request at a time."""
    max_long_partial_prefills: int | None = None
    """Most partial prefills that are longer than the threshold."""
    fair_partial_prefills: bool = False
    """Prompts in progress get equal shares of a step, instead of the first as much as it can take."""
    page_aligned_chunks: bool = True
    """Chunks end at page boundaries, or where the prompt ends."""
    share_prefixes: bool = True
    """A prompt waits for a page that another request is computing, instead of computing it as well."""
    hold_long_chunks: bool = True
    """With an ITL target, a step in which a prompt ends takes no part of a long one beside decodes: the first
    token of the prompt would wait for it."""

    forecast: Forecast = Forecast.PEAK
    schedule_conservativeness: float = 1.0
    """Factor of the forecast: above 1 fewer requests are admitted, and fewer preempted later."""
    victim: Victim = Victim.LAST_ADMITTED
    low_priority_values_first: bool = False
    """Smaller values of `Request.priority` are more urgent (vLLM); by default larger ones are (SGLang)."""
    priority_preemption_threshold: int | None = None
    """A waiting request preempts running ones whose priority is lower by more than this; None: never."""
    prompt_patience: float = PATIENCE
    """Policy "shortest": a prompt of n tokens is overtaken by at most n * prompt_patience tokens of shorter
    prompts that came later. Finite and above 0."""
    aging_tokens: int = 4_000_000
    """Other policies: a request goes first when this many prompt tokens have been admitted since it
    arrived."""
    tenant_quantum: int | None = None
    """Prompt tokens that each tenant may have admitted in its turn while requests of several tenants wait
    (deficit round robin); None: all tenants share one queue."""

    speculation: SpeculationConfig | None = None
    """None: no tokens are drafted."""

    itl_target_s: float | None = None
    """While requests decode, prompts get as much of a step as keeps the time between steps near this."""
    tpot_target_s: float | None = None
    """In place of `itl_target_s`: steps with prompts are spaced so that the mean time between the tokens of
    an answer meets this. Needs `chunk_budget`."""
    pause_target_s: float | None = None
    """With `tpot_target_s`: time of a step with prompts beside decodes, the pause that readers see; None: 1.6
    times `tpot_target_s`."""
    token_tile: int = 1
    """Rows that the device's matrix kernels compute at a time: such steps are rounded to them."""
    costly_context: float = math.inf
    """Tokens of context to which to attend costs as much as all else that a prompt token takes."""

    def __post_init__(self) -> None:
        if not 0 < self.prompt_patience < math.inf:
            raise ValueError(
                f"prompt_patience {self.prompt_patience}: use a finite number above 0, such as {PATIENCE:g}"
            )
        if not 0 < self.schedule_conservativeness < math.inf:
            raise ValueError(
                f"schedule_conservativeness {self.schedule_conservativeness}: use a finite number above 0"
            )
        positive = {
            "max_running_requests": self.max_running_requests,
            "chunk_budget": self.chunk_budget,
            "max_prefill_tokens": self.max_prefill_tokens,
            "max_partial_prefills": self.max_partial_prefills,
            "max_long_partial_prefills": self.max_long_partial_prefills,
            "aging_tokens": self.aging_tokens,
            "tenant_quantum": self.tenant_quantum,
            "token_tile": self.token_tile,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: use 1 or more")
        if self.tpot_target_s is not None and self.itl_target_s is not None:
            raise ValueError("itl_target_s and tpot_target_s are two ways to size chunks: use one")
        if self.pause_target_s is not None and not self.pause_target_s >= (self.tpot_target_s or math.inf):
            raise ValueError(f"pause_target_s {self.pause_target_s:g} needs a tpot_target_s of at most that")
        threshold = self.long_prefill_token_threshold
        if isinstance(threshold, int) and threshold < 1:
            raise ValueError(f"long_prefill_token_threshold {threshold}: use 1 or more")
        if self.priority_preemption_threshold is not None and self.policy is not Policy.PRIORITY:
            raise ValueError('priority_preemption_threshold needs policy "priority"')
        if self.fair_partial_prefills and self.max_partial_prefills is None:
            raise ValueError("fair_partial_prefills needs max_partial_prefills")
        if self.tenant_quantum is not None and self.policy in (Policy.LPM, Policy.DFS_WEIGHT):
            raise ValueError(f'tenant_quantum does not go with policy "{self.policy.value}"')
        if self.max_long_partial_prefills is not None and threshold is None:
            raise ValueError("max_long_partial_prefills needs long_prefill_token_threshold")

    @property
    def step_target_s(self) -> float | None:
        """Mean time at which steps with decodes are held while there are prompts; None: no target."""
        if self.tpot_target_s is not None:
            return STEP_SHARE * self.tpot_target_s
        return self.itl_target_s

    @property
    def pause_s(self) -> float | None:
        """Time of a step with prompts beside decodes where steps are spaced; None: they are not."""
        if self.tpot_target_s is None:
            return None
        return self.pause_target_s or _PAUSE_SHARE * self.tpot_target_s

    def without_step_targets(self) -> SchedulerConfig:
        """The same for steps that may take any time."""
        return replace(self, itl_target_s=None, tpot_target_s=None, pause_target_s=None)

    def longest_chunk(self, context: int) -> int | None:
        """Most tokens of one prompt in a step, for this context length; None: no limit."""
        if self.long_prefill_token_threshold == "auto":
            return max(1, int(context * _LONG_PREFILL_SHARE))
        return self.long_prefill_token_threshold

    def largest_chunk(self, context: int) -> int | None:
        """Most tokens of one prompt in a step, by all limits; None: prompts are computed whole."""
        longest = self.longest_chunk(context)
        if not self.chunked_prefill or (self.chunk_budget is None and longest is None):
            return None
        return min(self.prefill_limit(context), longest or context)

    def prefill_limit(self, context: int) -> int:
        """Prefill tokens of a step without decodes, for this context length."""
        limit = self.chunk_budget
        if limit is None:
            longest = self.longest_chunk(context)
            every = longest is not None and self.chunked_prefill
            limit = self.max_running_requests * (longest or 0) if every else context
        return limit if self.max_prefill_tokens is None else min(limit, self.max_prefill_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters that requests may name."""

    max_loras: int = 4
    """Slots on the device: adapters that a step can compute with."""
    max_lora_rank: int = 16
    max_cpu_loras: int = 32
    """Adapters in host memory, those of the slots included."""

    def __post_init__(self) -> None:
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: use 1 or more")
        if self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras {self.max_cpu_loras}: use max_loras ({self.max_loras}) or more")


UNIFORM: Final = "uniform"
"""Attention backend of `EngineConfig.reproducible`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model_path: Path
    """A Hugging Face folder: config.json, safetensors, tokenizer.json."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    dtype: str = "float32"
    """"float32", "bfloat16" or "float16"."""
    load_format: str = "auto"
    """"auto" or "dummy" (random weights, from the configuration alone)."""
    quantization: str | None = None
    """"fp8" quantizes unquantized weights as they are loaded; None takes them as they are."""
    model_impl: ModelImpl = ModelImpl.AUTO
    """Whose modules the model runs."""
    fp8_kv: bool = False
    """Whether keys and values are stored in 8 bits, with the checkpoint's scales; else in `dtype`."""
    page_size: int = 16
    num_pages: int = 1024
    """0: as many as `kv_memory_fraction` leaves room for (GPUs only)."""
    num_state_slots: int | None = None
    """Slots for recurrent states, of models that have them: for running requests and for checkpoints of
    prefixes. None: see `slot_count`."""
    kv_memory_fraction: float = 0.9
    """Share of the GPU's total memory that weights, activations and KV pool may take together."""
    max_model_len: int = 8192
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    radix_cache: bool = True
    retained_kv_share: float = 0.0
    """Share of the pool and its tiers that requests of one tenant may retain."""
    pooling: PoolingSpec | None = None
    """How prompts become vectors; None: tokens are generated."""
    overlap: bool = False
    """Plan step N+1 while step N runs on the device."""
    tensor_parallel_size: int = 1
    """Ranks that share the model, each with a process and a device of its own."""
    expert_parallel_size: int = 1
    """Groups of these ranks that hold other experts each; 1: every rank holds a part of each expert."""
    attention_backend: str = "auto"
    """"auto", "torch", "cpu" (compiled kernels), `UNIFORM` or "flashinfer"."""
    cuda_graph_max_batch: int = 0
    """Largest decode batch captured as a CUDA graph; 0: none."""
    cuda_graph_max_tokens: int = 0
    """Largest step with prompts captured as piecewise CUDA graphs, in tokens; 0: none."""
    language_model_only: bool = False
    """Leave out the vision model: requests with images are refused."""
    vision_model_only: bool = False
    """Leave out the language model: a small decoder with random weights answers health probes alone."""
    image_cache_bytes: int = 256 << 20
    """Memory of the device for encoded images, beside the one that a step needs."""
    return_routed_experts: bool = False
    """Whether pages keep which experts have computed their tokens, for requests that want to know."""
    processed_logprobs: bool = False
    """Whether log-probabilities of an answer are of the distribution that its tokens are sampled from, after
    penalties, temperature and truncation, and not of the model's own. Not on a GPU."""
    lora: LoraConfig | None = None
    """None: requests with adapters are refused."""
    seed: int = 0
    """For dummy weights and the random policy."""

    @property
    def decoder_load_format(self) -> str:
        """`load_format` of the language model."""
        return "dummy" if self.vision_model_only else self.load_format

    @property
    def numerics(self) -> str:
        """What rounds beside weights and kernels, such as "float32 on cpu"."""
        weights = [] if self.quantization is None else [f"{self.quantization} weights"]
        kv = ["fp8 KV"] if self.fp8_kv else []
        order = ["reproducible"] if self.reproducible else []
        return ", ".join([f"{self.dtype} on {self.device.partition(':')[0]}", *weights, *kv, *order])

    @property
    def reproducible(self) -> bool:
        """Whether the logits of a token depend on the weights and the tokens before it alone."""
        return self.attention_backend == UNIFORM

    @property
    def sums(self) -> SidecarKind | None:
        """Sums that pages own, of which means over prompts are made."""
        pooling = self.pooling
        return pooled_sums(pooling.pooling, pooling.size) if pooling and pooling.keeps_sums else None

    @property
    def max_decode_rows(self) -> int:
        """Decodes and drafted tokens of a step: with CUDA graphs, what the largest has room for."""
        running, speculation = self.scheduler.max_running_requests, self.scheduler.speculation
        if speculation is None or not speculation.reserves:
            return running
        most = running * (1 + speculation.num_draft_tokens)
        if self.cuda_graph_max_batch:
            most = min(most, self.cuda_graph_max_batch)
        return max(running, min(most, speculation.max_rows or most))

    @property
    def max_edited_drafts(self) -> int | None:
        """Drafted tokens of a step under penalties or a grammar. On a GPU each takes a table of the
        vocabulary, 0.5 MB for 128,000 tokens. None: any number."""
        if self.device == "cpu":
            return None
        speculation = self.scheduler.speculation
        if speculation is None or not speculation.reserves:
            return 0
        return min(_EDITED_DRAFTS, self.max_decode_rows)
