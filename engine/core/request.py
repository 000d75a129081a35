"""A request inside the engine."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from common.origin import NO_NAMESPACE, Namespace, activation_key, are_keys_of
from common.sidecars import KEPT_ALTERNATIVES
from common.token_array import token_array
from engine.core.media import MediaItem, check_media
from engine.core.read import Pooled, Read
from engine.core.request_state import RequestState
from engine.core.retention import Retention
from engine.core.sampling_params import FinishReason, SamplingParams
from engine.core.waits import WaitMark, WaitReason
from engine.errors import UnservableRequest
from engine.grammar.matcher import Matcher
from engine.speculation.kinds import NO_HINTS, DraftHints


@dataclass(slots=True)
class SchedulingState:
    number: int = 0
    """Counts submissions to one scheduler."""
    tokens_before: int = 0
    """Prompt tokens that had been admitted when the request was submitted."""
    wait_mark: WaitMark = ()
    """Since when it waits."""
    aging: float = 0.0
    """Term of `Request.schedule_key`: grows with every prompt submitted before; -inf once preempted."""
    admitted_by_age: bool = False
    """It was admitted before more urgent ones, since it had waited for long."""
    num_expected: int = 0
    """Prompt tokens that the prefix cache is expected to hold, until the request is admitted."""
    decodes_since: float | None = None
    """When its first token came, by the engine's clock; None before it decodes, or without a TPOT target. Of
    an answer that another worker began: when it would have come if its tokens met the target."""
    waited: Mapping[WaitReason, float] = field(default_factory=dict)
    """Seconds until it was admitted, or until its KV was here, by reason."""
    preempted_for: WaitReason | None = None
    """While it waits because it was preempted: for pages that a decode needed, or for a more urgent request
    (POLICY)."""


RequestId: TypeAlias = int
TokenId: TypeAlias = int
PageId: TypeAlias = int

PENDING: Final = -1
"""Placeholder in `Request.output` for a token that the step in flight is computing.

The scheduler plans step N+1 while step N runs and needs only the number of tokens. The model runner reads the
token itself from device memory.
"""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """One sequence. Every step lets `num_computed` catch up with `num_tokens`."""

    id: RequestId
    prompt: Sequence[TokenId]
    """Kept as an array: see `token_array`."""
    sampling: SamplingParams
    output: list[TokenId] = field(default_factory=list)
    priority: int = 0
    """More urgent if larger, unless `SchedulerConfig.low_priority_values_first`."""
    tenant: str = ""
    """Requests of one tenant share its turn; see `SchedulerConfig.tenant_quantum`."""
    ttft_deadline_s: float = math.inf
    """The first token is wanted within this time of `arrival`."""
    arrival: float = 0.0
    hints: DraftHints = NO_HINTS
    retention: Retention | None = None
    """How long its KV is to stay cached."""
    namespace: Namespace = NO_NAMESPACE
    """Requests of different ones share no KV; see `common.origin`."""
    read: Read | None = None
    """It ends with numbers from its prompt, without a token."""
    pooled: Pooled | None = None
    """The part of the vector that it reads of rows that are computed."""
    adapter: str = ""
    """Name of its adapter, for metrics and logs."""
    adapter_digest: bytes = b""
    """The adapter, by its whole content; empty: the base model."""
    adapter_start: int | None = None
    """Position from which it is computed with an activated adapter, whose digest is a part of the key there.
    None: from the first one, and the digest is a part of the namespace."""
    prompt_keys: Sequence[int] = ()
    """What KV of the prompt's positions is computed from; see `common.origin`. Unless given, the tokens."""
    media: tuple[MediaItem, ...] = ()
    """Images of the prompt, in its order."""

    awaits: set[bytes] = field(default_factory=set)
    """Digests of those images whose rows come from another worker, and are not here yet."""

    num_computed: int = 0
    """Tokens whose KV is in the pool, counting those of the step in flight."""
    num_scored: int = 0
    """Rows of the prompt that have given the log-probability of the token after them; see `scores_until`."""
    routed_experts: bool = False
    """Whether the experts that compute its tokens are reported."""
    num_routed: int = 0
    """Tokens whose experts are reported, here or by an earlier worker."""
    num_summed: int = 0
    """Tokens of its beginning of which cached pages have the sums that it reads."""
    pages: list[PageId] = field(default_factory=list)
    """The block table: block i is tokens [i * page_size, (i + 1) * page_size), with a page for each group of
    layers, one after another. NO_PAGE where a group with a window needs none, or none yet."""
    capacity: int = 0
    """Tokens that have a page in every group, or had one before it fell behind the window."""
    state: RequestState | None = None
    """The slots of its recurrent state, while it has pages; None for models without one."""
    slot: int = -1
    """Row in the runner's per-request device buffers while running; -1 otherwise."""
    adapter_slot: int = -1
    """Slot of its adapter while running; -1 otherwise, and without an adapter."""
    admissions: int = 0
    """How often it got a slot; a chunk belongs to one admission."""
    num_cached: int | None = None
    """Tokens found in the prefix cache at first admission; None before that."""
    pinned: bool = False
    """A peer may read its pages, which therefore stay: the request is never preempted."""
    paused: bool = False
    """Decoding is paused until the request continues, here or on another worker. It keeps its pages and its
    slot."""
    scheduling: SchedulingState = field(default_factory=SchedulingState)
    matcher: Matcher | None = None
    """Follows `sampling.grammar`; set when an engine takes the request."""
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self.prompt = token_array(self.prompt)
        self.prompt_keys = token_array(self.prompt_keys) if self.prompt_keys else self.prompt

    def check(self, vocab_size: int) -> None:
        """Raises InvalidRequest for unknown tokens, and for log-probabilities that come too late."""
        if not self.prompt:
            raise UnservableRequest("the prompt is empty")
        for tokens in (self.prompt, self.hints.prediction):
            if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
                raise UnservableRequest(f"token ids must be in [0, {vocab_size})")
        if bool(self.adapter) != bool(self.adapter_digest):
            raise UnservableRequest("a request with an adapter has its name and its digest")
        self._check_origin_of_adapter()
        if self.prompt_keys is not self.prompt and not are_keys_of(self.prompt_keys, self.prompt):
            raise UnservableRequest("a key of the prompt is neither its token nor that of a media item")
        check_media(self.media, len(self.prompt), self.prompt_keys)
        if self.read is not None and (self.output or self.sampling.max_tokens or self.sampling.scores_prompt):
            raise UnservableRequest("a read has neither an answer nor log-probabilities of its prompt")
        if self.read is not None:
            self.read.check(vocab_size)
        if self.output and self.num_scored < self.scores_until:
            raise UnservableRequest("the log-probabilities of a prompt come before the first token")

    def _check_origin_of_adapter(self) -> None:
        digest, start = self.adapter_digest, self.adapter_start
        if digest and start is None and not self.namespace:
            raise UnservableRequest("the digest of an adapter is a part of the request's namespace")
        if start is not None and not (
            0 <= start < len(self.prompt)
            and self.prompt_keys[start] == activation_key(digest, self.prompt[start])
        ):
            raise UnservableRequest(f"no adapter is activated by the key of position {start}")

    @property
    def is_retained(self) -> bool:
        """Whether some of its KV is to stay cached after its end."""
        return self.retention is not None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def num_pending(self) -> int:
        """1 while decoding; more during prefill."""
        return self.num_tokens - self.num_computed

    @property
    def num_ready(self) -> int:
        """`num_pending` without the tokens from the first image on whose rows are awaited."""
        if not self.awaits:
            return self.num_pending
        start = self.num_computed
        ends = (item.offset for item in self.media if item.digest in self.awaits and item.end > start)
        return max(min(ends, default=self.num_tokens) - start, 0)

    @property
    def scores_until(self) -> int:
        """End of the rows that give log-probabilities of prompt tokens; 0: none are wanted."""
        return len(self.prompt) - 1 if self.sampling.scores_prompt else 0

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose KV may come from a cache; the others are computed for their logits."""
        if self.read is not None and self.read.needs_all_rows:
            return min(self.num_summed, self.num_tokens - 1)
        reusable = self.num_tokens - 1 if self.num_scored >= self.scores_until else self.num_scored
        return min(reusable, self.num_routed) if self.routed_experts else reusable

    @property
    def num_sought(self) -> int:
        """Leading tokens whose KV is worth bringing into the pool: log-probabilities may come with it."""
        served = self.sampling.prompt_alternatives <= KEPT_ALTERNATIVES
        return self.num_tokens - 1 if served else self.num_reusable

    @property
    def schedule_key(self) -> float:
        """Prefill order, lowest first: tokens that are expected to be computed, plus aging."""
        return self.num_pending - self.scheduling.num_expected + self.scheduling.aging

    @property
    def deadline(self) -> float:
        """Deadline of the first token, on the engine's clock."""
        return self.arrival + self.ttft_deadline_s

    @property
    def awaits_token(self) -> bool:
        """Whether its last token is still being computed by the step in flight."""
        return bool(self.output) and self.output[-1] == PENDING

    @property
    def num_known(self) -> int:
        """`num_tokens` without those that the step in flight computes, drafted ones included."""
        output, end = self.output, len(self.output)
        while end and output[end - 1] == PENDING:
            end -= 1
        return len(self.prompt) + end

    def extend_known(self, tokens: list[TokenId]) -> None:
        """Add what `tokens`, the first ones of prompt and output, lack of the `num_known` first ones."""
        n, have, end = len(self.prompt), len(tokens), self.num_known
        if have < n:
            tokens += self.prompt[have:end]
            have = len(tokens)
        if have < end:
            tokens += self.output[have - n : end - n]

    def tokens(self, start: int, end: int) -> array[TokenId]:
        """Token ids at absolute positions [start, end)."""
        return self._continued(self.prompt, start, end)

    def keys(self, start: int, end: int) -> array[int]:
        """Keys at absolute positions [start, end), which name their KV within the namespace."""
        return self._continued(self.prompt_keys, start, end)

    def _continued(self, prompt: Sequence[int], start: int, end: int) -> array[int]:
        n = len(prompt)
        if end <= n:
            return token_array(prompt[start:end])
        if start >= n:
            return token_array(self.output[start - n : end - n])
        return token_array(prompt[start:]) + token_array(self.output[: end - n])

    def token(self, position: int) -> TokenId:
        """The token id at an absolute position."""
        n = len(self.prompt)
        return self.prompt[position] if position < n else self.output[position - n]
