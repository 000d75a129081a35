"""A sequence, as it is asked for and over all its attempts, and the identity of the client's request."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from common.block_hash import BlockHash, block_hashes, root_hash
from common.origin import Namespace, with_weights
from common.sidecars import KINDS
from common.token_array import token_array
from router.dispatch.adapters.table import Digest
from router.dispatch.request_status import NO_WORKER, RequestStatus
from router.dispatch.row_order import RowOrder
from router.dispatch.token_stream import TokenStream
from router.dispatch.waterfall import Waterfall
from router.placement.images import AwaitedRows, ImageSpans
from rpc.baton.v1 import sampling_pb2, worker_pb2

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED: Final = 1
_CLIENTS_ID: Final = re.compile(r"[!-~]{1,128}", re.ASCII)
"""Bounded, and fit for logs and headers: printable, without spaces."""
_OF_ANSWER: Final = (
    "sampling",
    "ttft_deadline_s",
    "timeout_s",
    "weights",
    "weight_versions",
    "routed_experts",
)
"""Fields of a `Work` that a read of its tokens is without; `use_weights` sets the weights again."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C Trace Context: the trace that a request belongs to, and the caller's span."""

    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str = ""
    """16 hexadecimal digits; empty: the trace begins here."""
    sampled: bool = True

    @classmethod
    def of(cls, traceparent: str | None) -> TraceContext:
        """The caller's trace; a new one if there is none, or it is invalid."""
        found = _TRACEPARENT.fullmatch((traceparent or "").strip())
        if found is None:
            return cls(secrets.token_hex(16))
        version, trace_id, parent_id, flags, more = found.groups()
        is_valid = (
            version != "ff" and not (version == "00" and more) and int(trace_id, 16) and int(parent_id, 16)
        )
        if not is_valid:
            return cls(secrets.token_hex(16))
        return cls(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED))

    def traceparent(self, span_id: str) -> str:
        """The header for calls within the span `span_id`."""
        return f"00-{self.trace_id}-{span_id}-{'01' if self.sampled else '00'}"


def clients_id_of(given: str | None) -> str:
    """A client's own name of a request, as it came; empty if there is none, or it is unfit for logs."""
    found = _CLIENTS_ID.fullmatch((given or "").strip())
    return "" if found is None else found[0]


@dataclass(slots=True, eq=False)
class RequestIdentity:
    """One request of a client, which may ask for several sequences."""

    id: str = ""
    """Empty for internal requests, whose sequences get random ids."""
    trace: TraceContext = field(default_factory=lambda: TraceContext.of(None))
    operation: str = "text_completion"
    """gen_ai.operation.name of the GenAI semantic conventions."""
    clients_id: str = ""
    """`x-request-id` of the client, which need not be unique."""
    read_on: str = field(default="", init=False)
    """Key of the session that its latest read was placed on."""
    _count: count[int] = field(default_factory=count, repr=False)

    def next_sequence(self) -> tuple[int, str]:
        """Index and id of the next sequence: the request's own id, then with suffixes -1, -2, …"""
        index = next(self._count)
        if not self.id:
            return index, secrets.token_hex(8)
        return index, f"{self.id}-{index}" if index else self.id


CURRENT_REQUEST: Final[ContextVar[RequestIdentity | None]] = ContextVar("request", default=None)
"""Set by the frontend for each call."""


@dataclass(slots=True, eq=False)
class SequenceState:
    prototype: worker_pb2.Work
    """What is asked for, copied for each attempt; its deadlines count from the arrival. Not changed, but by
    `use_weights`."""
    waterfall: Waterfall
    """Its arrival is when deadlines begin."""
    stream: TokenStream = field(default_factory=TokenStream)
    """To the reader of the output."""
    identity: RequestIdentity = field(default_factory=RequestIdentity)
    """The client's request, which may have other sequences too."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """For logs and errors."""
    trace: TraceContext = field(default_factory=lambda: TraceContext.of(None))
    operation: str = "text_completion"
    """gen_ai.operation.name of the GenAI semantic conventions."""
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """The sequence's span in the trace."""
    output: list[int] = field(default_factory=list)
    """Tokens received from workers, in order; a retry continues after them."""
    rows: RowOrder = field(default_factory=RowOrder)
    """Rows received from workers; a retry continues after them."""
    row_sources: Mapping[bytes, worker_pb2.RowsSource] = field(default_factory=dict)
    """Where workers fetch the rows of images that an encode worker encodes, by digest."""
    rows_at: float = 0.0
    """When these rows are expected, on time.monotonic()."""
    status: Callable[[], RequestStatus] = lambda: NO_WORKER
    """Its current stage."""
    _blocks: dict[int, list[BlockHash]] = field(default_factory=dict)
    """Block hashes by page size."""
    _namespace: Namespace = field(init=False)
    """The request's own, whatever the weights."""
    _version: str = field(default="", init=False)
    """Name of the weights of the attempt."""

    def __post_init__(self) -> None:
        self._namespace = self.prototype.namespace

    def use_weights(self, tag: str, version: str) -> None:
        """Have the next attempts computed with these weights, in a namespace of their own."""
        self._version = version
        if tag == self.prototype.weights:
            return
        prototype = worker_pb2.Work()
        prototype.CopyFrom(self.prototype)
        prototype.weights, prototype.namespace = tag, with_weights(self._namespace, tag)
        self.prototype = prototype
        self._blocks.clear()
        self.stream.computed_with(tag, len(self.output))

    @property
    def weights(self) -> str:
        """Tag of the weights of the attempt."""
        return self.prototype.weights

    def begun(self, position: int) -> list[worker_pb2.Output]:
        """What goes before the first token of an attempt, which has this position."""
        if not self.prototype.weight_versions:
            return []
        begin = sampling_pb2.WeightsBegin(position=position, version=self._version)
        return [worker_pb2.Output(weights_begin=begin)]

    @property
    def prompt(self) -> Sequence[int]:
        return self.prototype.prompt

    @property
    def adapter(self) -> Digest:
        """Digest of the adapter that it is admitted with, on every worker and in every attempt."""
        return self.prototype.adapter_digest

    @property
    def keys(self) -> Sequence[int]:
        """Keys of the prompt's positions; see `common.origin`."""
        return token_array(self.prototype.prompt_keys) if self.prototype.prompt_keys else self.prompt

    @property
    def images(self) -> ImageSpans:
        """Images that the worker of the prompt encodes."""
        media = self.prototype.media
        return [
            (item.offset, item.offset + item.length) for item in media if item.digest not in self.row_sources
        ]

    def awaited_rows(self, now: float) -> AwaitedRows | None:
        """Images that an encode worker encodes."""
        if not self.row_sources:
            return None
        media = self.prototype.media
        spans = [
            (item.offset, item.offset + item.length) for item in media if item.digest in self.row_sources
        ]
        return AwaitedRows(spans, max(0.0, self.rows_at - now))

    @property
    def sampling(self) -> sampling_pb2.SamplingParams:
        return self.prototype.sampling

    @property
    def is_prefill_only(self) -> bool:
        """Whether it ends with numbers from its prompt, and without a token."""
        return self.prototype.HasField("read")

    def ahead(self) -> SequenceState:
        """A read of prompt and answer so far: it leaves their KV in the cache of the worker that gets it."""
        work = worker_pb2.Work()
        work.CopyFrom(self.prototype)
        for name in _OF_ANSWER:
            work.ClearField(name)
        work.namespace = self._namespace
        work.prompt.extend(self.output)
        if work.prompt_keys:
            work.prompt_keys.extend(self.output)
        work.read.SetInParent()
        return SequenceState(work, Waterfall(time.monotonic()), id=f"{self.id}-ahead", trace=self.trace)

    @property
    def deadline(self) -> float:
        """On time.monotonic(); math.inf: none."""
        return self.waterfall.arrival + (self.prototype.timeout_s or math.inf)

    @property
    def traceparent(self) -> str:
        """Header for the workers: their spans are children of this sequence's span."""
        return self.trace.traceparent(self.span_id)

    @property
    def label(self) -> str:
        """For the logs of router and workers."""
        return f"{self.id} ({self.traceparent})"

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def reuses_nothing(self) -> bool:
        """Whether the whole prompt is computed: it wants more of its tokens than cached pages have."""
        return not self.output and any(getattr(self.sampling, kind.name) > kind.most for kind in KINDS)

    def blocks(self, page_size: int) -> list[BlockHash]:
        """Hashes of the prompt's full pages, without tokens that are computed in any case: the last one, or
        all. A prompt of which numbers are wanted may find that these pages lack them."""
        if self.reuses_nothing:
            return []
        blocks = self._blocks.get(page_size)
        if blocks is None:
            before = root_hash(page_size, self.prototype.namespace)
            blocks = self._blocks[page_size] = block_hashes(self.keys[:-1], page_size, before)
        return blocks

    def take(self, output: worker_pb2.Output, first: list[worker_pb2.Output]) -> None:
        """Deliver rows that go on through the answer; others are added to `first`, for its first token."""
        if output.HasField("routed_experts"):
            self.stream.delta.outputs += self.rows.take(output)
        else:
            first.append(output)

    def seconds_left(self) -> float:
        """math.inf without a deadline; never negative."""
        return max(self.deadline - time.monotonic(), 0.0)

    def work(self, request_id: int) -> worker_pb2.Work:
        """The sequence with its output so far, for a command to a worker."""
        left = self.seconds_left()
        work = worker_pb2.Work(
            request_id=request_id,
            output=self.output,
            num_scored=len(self.prompt) - 1 if self.output else 0,
            num_routed=self.rows.known,
            name=self.id,
            traceparent=self.traceparent,
        )
        work.MergeFrom(self.prototype)
        for item in work.media:
            source = self.row_sources.get(item.digest)
            if source is not None and source.weights == self.weights:
                item.rows.CopyFrom(source)
        work.timeout_s = 0.0 if left == math.inf else max(left, 1e-3)
        work.ttft_deadline_s = self._seconds_to_first_token()
        return work

    def awaited(self, request_id: int) -> worker_pb2.Work:
        """`work` for a worker that gets the KV of another one: without the pixels of images."""
        work = self.work(request_id)
        for item in work.media:
            item.ClearField("arrays")
            item.ClearField("rows")
        return work

    def _seconds_to_first_token(self) -> float:
        """0 without a deadline, or once the client has a token."""
        allowed_s = self.prototype.ttft_deadline_s
        if not allowed_s or self.output:
            return 0.0
        return max(self.waterfall.arrival + allowed_s - time.monotonic(), 1e-3)
