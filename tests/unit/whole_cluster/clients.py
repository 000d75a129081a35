"""A client of the whole cluster, and what it must get."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from engine.core.sampling_params import PromptLogprobs
from router.dispatch.sequence import SequenceState

SCORES = ("logprobs", "ranks", "top_ids", "top_logprobs")


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
    attempt: Any = None
    task: Any = None

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
