"""A model runner whose KV cache can be read.

Where a real pool holds keys and values, this one holds a digest of all tokens up to that position, and the
next token is a function of that digest. A token computed from a wrong, stale or half-written page differs
from the reference, so scheduling, paging, caching and preemption are checked by their only purpose: the
same tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.plan import StepPlan
from engine.request import PENDING
from engine.runner import StepResult

VOCAB = 97
EOS = 96


@dataclass(frozen=True)
class FakeSpec:
    vocab_size: int = VOCAB
    eos_token_ids: frozenset[int] = frozenset({EOS})


@dataclass
class FakeStep:
    answer: StepResult

    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self.answer


def extend(digest: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), digest)


def next_token(digest: int) -> int:
    return digest % VOCAB


def reference(prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    digest, output = 0, []
    for token in prompt:
        digest = extend(digest, token)
    while len(output) < max_tokens:
        output.append(next_token(digest))
        if output[-1] == EOS and not ignore_eos:
            break
        digest = extend(digest, output[-1])
    return output


@dataclass
class FakeRunner:
    page_size: int
    num_pages: int
    spec: FakeSpec = field(default_factory=FakeSpec)
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """(request id, start, length) of every chunk of every step."""
    fails: set[int] = field(default_factory=set)
    """Ids of requests whose logits are not finite."""

    def __post_init__(self) -> None:
        self.memory = [[-1] * self.page_size for _ in range(self.num_pages)]
        self.last_tokens: dict[int, int] = {}

    def prepare(self, plan: StepPlan) -> StepPlan:
        return plan

    def launch(self, plan: StepPlan) -> FakeStep:
        lengths = [chunk.length for chunk in plan.chunks]
        assert sorted(lengths, key=lambda n: n == 1) == lengths, "single tokens come last"
        slots = [chunk.request.slot for chunk in plan.chunks]
        assert len(set(slots)) == len(slots)
        assert all(slot >= 0 for slot in slots)
        self.steps.append([(c.request.id, c.start, c.length) for c in plan.chunks])
        tokens: list[int] = []
        errors: dict[int, str] = {}
        for chunk in plan.chunks:
            request = chunk.request
            digest = self._read(request.pages, chunk.start - 1) if chunk.start else 0
            for position in range(chunk.start, chunk.end):
                token = request.tokens(position, position + 1)[0]
                digest = extend(digest, self.last_tokens[request.slot] if token == PENDING else token)
                self.memory[request.pages[position // self.page_size]][position % self.page_size] = digest
            if chunk.samples:
                if request.id in self.fails:
                    errors[len(tokens)] = "not finite"
                tokens.append(next_token(digest))
                self.last_tokens[request.slot] = tokens[-1]
        return FakeStep(StepResult(tokens, [None] * len(tokens), errors))

    def close(self) -> None:
        pass

    def _read(self, pages: list[int], position: int) -> int:
        return self.memory[pages[position // self.page_size]][position % self.page_size]
