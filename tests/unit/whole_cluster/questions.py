"""What clients of the whole cluster ask, each with its only right answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from common.origin import media_keys
from engine.core.read import LabelLogprobs, Pooled, Read
from engine.core.sampling_params import PromptLogprobs
from engine.model_config.parts.layer_options import Pooling
from router.dispatch.adapters.adapted_work import fill_origin
from router.dispatch.adapters.table import Adapter
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.fake_adapters import digest_of
from tests.unit.engine.fake_runner import reference, reference_labels, reference_scores, reference_vector

WORKERS = 3
ACTIVATED = {"echo": (1, 1)}
"""Invocation tokens of adapters that are used from there on."""
ADAPTERS = ("style", "sql", *ACTIVATED)
"""Contents of adapters, with one of which a step can compute."""
IMAGE = 0

PROMPTS = st.builds(
    lambda prefix, rest: prefix + rest,
    st.sampled_from([[], [0] * 8, [1] * 12, [0] * 4 + [2] * 8, [2] * 16]),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
"""Most begin as others do."""


def named(adapter: str) -> Adapter:
    return Adapter(adapter, adapter, digest_of(adapter), invocation=ACTIVATED.get(adapter, ()))


@dataclass(frozen=True)
class Question:
    prompt: list[int]
    image: bytes
    """Names the content of the token IMAGE wherever it occurs; empty: it is a token like any other."""
    salt: str
    length: int
    places: list[int]
    priority: int
    pulled: int
    kept_s: float
    answers: int
    scored: int | None = None
    """`prompt_logprobs`."""
    adapter: str = ""
    routed: bool = False
    """Whether the experts of its tokens are wanted."""
    read: Read | None = None
    """The numbers that are wanted in place of an answer."""

    @property
    def origin(self) -> tuple[list[int], bytes, str, str]:
        return self.prompt, self.image, self.salt, self.adapter

    @cached_property
    def prompted(self) -> worker_pb2.Work:
        """The prompt and its origin, as the router names them."""
        keys = [
            media_keys(self.image, range(i, i + 1))[0] if self.image and token == IMAGE else token
            for i, token in enumerate(self.prompt)
        ]
        work = worker_pb2.Work(
            prompt=self.prompt, prompt_keys=keys if self.image else (), cache_salt=self.salt
        )
        fill_origin(work, named(self.adapter) if self.adapter else None, path=self.adapter)
        return work

    @property
    def namespace(self) -> bytes:
        return self.prompted.namespace

    @property
    def keys(self) -> list[int]:
        return list(self.prompted.prompt_keys or self.prompt)

    @property
    def scores(self) -> PromptLogprobs | None:
        """The only right log-probabilities, if they are wanted."""
        return None if self.scored is None else reference_scores(self.keys, self.scored, self.namespace)

    @property
    def numbers(self) -> LabelLogprobs | Pooled | None:
        """The only right ones, if they are wanted, as messages have them."""
        if self.read is None:
            return None
        if self.read.pooling:
            return reference_vector(self.keys, self.read, self.namespace)
        found = reference_labels(self.keys, self.read.label_ids, self.namespace)
        return replace(found, mass=float(np.float32(found.mass)))

    def pooled(self, pooling: Pooling) -> Question:
        """As a model of vectors can be asked."""
        return replace(self, read=Read(pooling=pooling), scored=None, routed=False, adapter="")

    def sequence(self) -> tuple[SequenceState, list[int]]:
        """And its only right answer."""
        length = self.length if self.read is None else 0
        sampling = sampling_pb2.SamplingParams(
            max_tokens=length, top_p=1.0, repetition_penalty=1.0, ignore_eos=True
        )
        if self.scored is not None and self.read is None:
            sampling.prompt_logprobs = self.scored
        kept = worker_pb2.Retention(key="k", seconds=self.kept_s) if self.kept_s else None
        request = worker_pb2.Work(
            sampling=sampling,
            priority=self.priority,
            retention=kept,
            routed_experts=self.routed and self.read is None,
        )
        request.MergeFrom(self.prompted)
        if self.read is not None:
            request.read.CopyFrom(worker_pb2.Read(label_ids=self.read.label_ids, pooling=self.read.pooling))
        right = reference(self.keys, length, ignore_eos=True, namespace=self.namespace)
        return SequenceState(request, Waterfall(0.0)), right


QUESTIONS = st.builds(
    Question,
    prompt=PROMPTS,
    image=st.sampled_from([b"", b"", b"blue", b"red"]),
    salt=st.sampled_from(["", "", "a", "b"]),
    length=st.sampled_from([1, 2, 12, 40, 40, 40]),
    places=st.lists(st.integers(0, WORKERS - 1), min_size=4, max_size=4),
    priority=st.integers(0, 2),
    pulled=st.integers(0, 4),
    kept_s=st.sampled_from([0.0, 3.0]),
    answers=st.sampled_from([1, 1, 2]),
    scored=st.sampled_from([None, None, 0, 1, 2]),
    adapter=st.sampled_from(["", "", *ADAPTERS]),
    routed=st.booleans(),
    read=st.sampled_from([None, None, None, Read(), Read((3,)), Read((5, 90, 17))]),
)
