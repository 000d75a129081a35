"""Fields of the requests of every API that uses workers: session, priority, deadlines, and stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from router.api.cache_hints import CacheHints
from router.api.generation.audit.answer import Detail
from router.api.generation.envelope import envelope
from router.api.generation.generation_request import GenerationRequest, Prompt
from router.api.generation.params.bounds import Priority, Timeout
from router.api.generation.params.sampling_options import SamplingOptions
from rpc.baton.v1 import worker_pb2


class ScheduledFields(CacheHints):
    # Extensions of all APIs.
    priority: Priority | None = None
    """With --schedule-policy priority; otherwise only 0."""
    ttft_deadline: Timeout | None = None
    """Deadline of the first token, in seconds; with --schedule-policy deadline."""
    timeout: Timeout | None = None
    """Deadline of the whole request, in seconds."""

    @property
    def work(self) -> worker_pb2.Work:
        """What workers are told of it: see `envelope`."""
        return envelope(
            priority=self.priority or 0,
            ttft_deadline_s=self.ttft_deadline or 0.0,
            timeout_s=self.timeout or 0.0,
            **self.cache_fields,
        )


class ScheduledBody(ScheduledFields):
    stream: bool | None = None
    """Server-sent events."""
    receipt: bool | Literal["digests"] | None = None
    """Return digests of everything that the answer was computed from, and the token ids; `digests`: without
    these."""

    @abstractmethod
    def to_request(self, request_id: str) -> GenerationRequest:
        """Raises InvalidRequest."""

    def _request(
        self, request_id: str, prompts: Sequence[Prompt], options: Mapping[str, Any], **more: Any
    ) -> GenerationRequest:
        """`options`: sampling options by name; None means the default. `more`: further fields."""
        return GenerationRequest(
            id=request_id,
            prompts=prompts,
            options=SamplingOptions(**{name: value for name, value in options.items() if value is not None}),
            work=self.work,
            audit=Detail.asked(self.receipt),
            **more,
        )
