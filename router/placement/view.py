"""The input of placement policies: numbers about workers, the links between them, and one request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, TypeAlias

from router.placement.account.room import Room
from router.placement.adapters import AdapterPlace
from router.placement.images import AwaitedRows, ImageSpans, image_tokens
from router.placement.step_time import EVERYTHING, NO_DRAFTS, Drafting, Reach, StepTime, StepWork

WorkerId: TypeAlias = str


class Preference(Enum):
    """The role that a worker is configured for. Any worker can do both."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class Health(IntEnum):
    """Order of preference of a worker for a request; smaller is better. See `by_load.preferred`."""

    GOOD = 0
    SUSPECT = 1
    """Several requests failed on it in a row."""
    AVOIDED = 2
    """This request has failed on it."""
    LATE = 3
    """Its heartbeats are late."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Service level objectives of every request."""

    ttft_s: float
    tpot_s: float
    """Bound on the mean time between an answer's tokens."""


@dataclass(frozen=True, slots=True)
class PromptWork:
    """A prompt that a worker has queued or in progress."""

    tokens: int
    """Tokens not computed yet."""
    computed: int
    """Tokens before those: computed or cached."""
    arrived: float
    """When its request arrived at the router."""
    image_tokens: int = 0
    """Tokens of images that are not computed yet, and that the worker may have to encode."""


_UNKNOWN: Final = Room()
"""Without a report there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    id: WorkerId
    prefers: Preference = Preference.BOTH
    step_time: StepTime
    """Step time as a function of the tokens that attention reads; see `reach`."""
    reach: Reach = EVERYTHING
    drafting: Drafting = NO_DRAFTS
    chunk_tokens: int
    """Most tokens that a step computes."""
    step_target_s: float | None = None
    """Mean time of steps at which prompts beside decodes are held; None: only `chunk_tokens` bounds steps."""
    pause_target_s: float | None = None
    """Time of a step with prompts beside decodes; None: `chunk_tokens` bounds it."""
    image_token_s: float = 0.0
    """Time to encode an image, divided by its tokens in the prompt; 0: not measured."""
    prompts: tuple[PromptWork, ...] = ()
    """Queued and in progress, in order of arrival at the worker."""
    decodes: int = 0
    context_tokens: int = 0
    """Context tokens of all decodes together."""
    incoming: int = 0
    """Requests that will decode here, whose prompts are queued or in progress, on any worker."""
    incoming_tokens: int = 0
    """Prompt tokens of those."""
    max_running: int | None = None
    """Requests that it computes at a time, each in a slot; None: any number."""
    shares_prefixes: bool = False
    """It can send cached KV to other workers, and take theirs."""
    prompt_rate: float = 0.0
    """Recent rate of prompt tokens assigned to this worker, per second."""
    available_pages: int
    """Free, or cached and unlocked."""
    total_pages: int
    page_size: int
    requests: int = 0
    """Unfinished requests of this router."""
    tokens: int = 0
    """Uncached prompt tokens of these requests when they were sent."""
    health: Health = Health.GOOD
    room: Room = _UNKNOWN

    @property
    def prompt_tokens(self) -> int:
        """Not computed yet, of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def encode_s(self) -> float:
        """Time to encode the images of all prompts."""
        return self.image_token_s and self.image_token_s * sum(prompt.image_tokens for prompt in self.prompts)

    @property
    def answers(self) -> int:
        """Answers that decode here, wait for a slot, or wait for their prompt."""
        return self.decodes + self.incoming

    @property
    def answer_step_s(self) -> float:
        """Time of a step without prompts, with one decode at least."""
        work = StepWork(decodes=max(self.decodes, 1), context_tokens=self.context_tokens)
        return self.step_time.seconds(work)

    @property
    def has_slot(self) -> bool:
        """Whether a further answer could begin to decode at once."""
        return self.max_running is None or self.answers < self.max_running


@dataclass(frozen=True, slots=True)
class LinkView:
    bytes_per_s: float
    latency_s: float
    """Time of a handoff of no bytes: messages, polls, digests."""

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Demand:
    """Recent load: a rate, and means over requests."""

    requests_per_s: float = 0.0
    prompt_tokens: float = 1.0
    """To be computed, excluding cached ones."""
    attention: float = 0.0
    """Pairs of a prompt token and one that it attends to."""
    context_tokens: float = 1.0
    """Context length half way through the answer."""
    output_tokens: float = 1.0


INSTANT: Final = LinkView(math.inf, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    now: float
    """On the clock of `PromptWork.arrived`."""
    workers: tuple[WorkerView, ...]
    demand: Demand = Demand()
    kv_bytes_per_token: int
    link: LinkView
    """The link between any two workers that are not in `links`."""
    links: Mapping[tuple[WorkerId, WorkerId], LinkView] = field(default_factory=dict)
    tier: LinkView = INSTANT
    """Between the tiers and the pool of a worker that is not in `tiers`."""
    tiers: Mapping[WorkerId, LinkView] = field(default_factory=dict)

    def promotion_s(self, worker: WorkerId, tokens: int) -> float:
        """Seconds until KV of this many tokens has come up from the worker's tiers."""
        return self.tiers.get(worker, self.tier).seconds(tokens * self.kv_bytes_per_token) if tokens else 0.0

    def link_between(self, source: WorkerId, destination: WorkerId) -> LinkView:
        if source == destination:
            return INSTANT
        return self.links.get((source, destination), self.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    prompt_tokens: int
    expected_output: int
    """0: a read, which has no answer."""
    arrived: float
    """When it arrived at the router; earlier than `ClusterView.now` if it is placed again."""
    cached: Mapping[WorkerId, int] = field(default_factory=dict)
    """Tokens of its prompt cached on each worker; workers without any may be absent."""
    stored: Mapping[WorkerId, int] = field(default_factory=dict)
    """Cached tokens that a worker can send to another one now, in whole pages."""
    on_tiers: Mapping[WorkerId, int] = field(default_factory=dict)
    """Cached tokens that the worker has on a KV tier and not in its pool."""
    adapter: Mapping[WorkerId, AdapterPlace] = field(default_factory=dict)
    """Where its adapter is on each worker; empty: it has none."""
    images: ImageSpans = ()
    """Images that the worker of the prompt encodes."""
    image_token_s: float = 0.0
    """`WorkerView.image_token_s` where that is not measured."""
    awaited: AwaitedRows | None = None
    """Images that an encode worker encodes."""
    avoid: AbstractSet[WorkerId] = frozenset()
    """Workers on which it has failed."""

    def adapter_wait_s(self, worker: WorkerView) -> float:
        """Seconds until the worker can compute with its adapter. A slot that others use is free after about
        half an answer: newer requests do not prolong its use."""
        place = self.adapter.get(worker.id)
        if place is None:
            return 0.0
        answers = max(self.expected_output, 1) / 2 if place.waits_for_slot else 0.0
        return max(place.load_s, answers * worker.answer_step_s)

    def encode_s(self, worker: WorkerView) -> float:
        """Time in which the worker encodes those images that it has no KV of."""
        token_s = worker.image_token_s or self.image_token_s
        if not self.images or not token_s:
            return 0.0
        return token_s * image_tokens(self.images, self.cached_on(worker))

    def cached_on(self, worker: WorkerView) -> int:
        return self.cached_by(worker.id, worker.page_size)

    def cached_by(self, worker_id: WorkerId, page_size: int) -> int:
        """Cached tokens in whole pages, never the whole prompt: one token is computed for its logits."""
        cached = min(self.cached.get(worker_id, 0), self.prompt_tokens - 1)
        return max(0, cached // page_size * page_size)
