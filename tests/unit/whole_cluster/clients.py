"""A client of the whole cluster: what it has got, and what is right."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final

from engine.core.read import LabelLogprobs, Pooled
from engine.core.sampling_params import PromptLogprobs
from router.dispatch.sequence import SequenceState
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.fake_runner import reference_experts
from tests.unit.whole_cluster.questions import Question

SCORES: Final = ("logprobs", "ranks", "top_ids", "top_logprobs")


@dataclass(eq=False)
class Client:
    sequence: SequenceState
    places: list[int]
    """Workers of its attempts, in turn."""
    right: list[int]
    scores: PromptLogprobs | None
    experts: bytes
    """Empty: they are not wanted."""
    pulled: int
    """Blocks that each attempt gets from another worker's cache first, if that has them."""
    numbers: LabelLogprobs | Pooled | None
    """What it reads; None: nothing."""
    attempt: Any = None
    task: Any = None

    @property
    def is_answered(self) -> bool:
        return self.has_ended and self.sequence.output == self.right

    @property
    def has_ended(self) -> bool:
        return self.sequence.stream.delta.finish != sampling_pb2.FINISH_REASON_UNSPECIFIED

    def check_outputs(self) -> None:
        """What came beside tokens, or in their place."""
        if self.sequence.is_prefill_only:
            self.check_numbers()
        elif self.sequence.output:
            self.check_scores()
        self.check_experts()

    def check_scores(self) -> None:
        """What came with the first token."""
        found: dict[str, list[Any]] = {name: [] for name in SCORES}
        outputs = self.sequence.stream.delta.outputs
        for part in (one.prompt_logprobs for one in outputs if one.HasField("prompt_logprobs")):
            assert part.position == 1 + len(found["logprobs"])
            for name, values in found.items():
                values += getattr(part, name)
        assert found == {name: [] if self.scores is None else getattr(self.scores, name) for name in SCORES}

    def check_experts(self) -> None:
        """The experts of every token but the last are known, once each, and right."""
        outputs = self.sequence.stream.delta.outputs
        parts = [one.routed_experts for one in outputs if one.HasField("routed_experts")]
        ends = [0, *itertools.accumulate(part.count for part in parts)]
        assert [part.position for part in parts] == ends[:-1]
        rows = b"".join([part.rows for part in parts])
        assert self.experts.startswith(rows)
        if self.experts and self.sequence.output:
            assert ends[-1] >= self.sequence.num_tokens - 1

    def check_numbers(self) -> None:
        """The numbers of a read came with its end, and once."""
        assert not self.sequence.output
        outputs = self.sequence.stream.delta.outputs
        expected = [self.numbers] if self.has_ended and self.numbers is not None else []
        assert [numbers_of(one) for one in outputs] == expected


def numbers_of(output: worker_pb2.Output) -> LabelLogprobs | Pooled:
    """As the engine that computed them had them."""
    if output.HasField("pooled"):
        return Pooled(output.pooled.position, output.pooled.values)
    found = output.label_logprobs
    return LabelLogprobs(found.position, list(found.ids), list(found.logprobs), found.mass)


def client_of(question: Question) -> Client:
    sequence, right = question.sequence()
    routed = question.routed and question.read is None
    experts = reference_experts([*question.keys, *right], question.namespace) if routed else b""
    return Client(
        sequence, question.places, right, question.scores, experts, question.pulled, question.numbers
    )
