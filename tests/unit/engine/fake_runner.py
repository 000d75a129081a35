"""A model runner whose KV cache can be read.

Where a real pool holds keys and values, this one holds a digest of the origin up to that position, and the
next token is a function of that digest. A token computed from a wrong, stale or half-written page differs
from the reference, so scheduling, paging, caching and preemption are checked by their only purpose: the
same tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from common.kv_groups import NO_PAGE, ONE_GROUP, KVGroup
from common.sidecars import KEPT_ALTERNATIVES, KINDS, SidecarKind, routed_experts
from engine.core.batch.step_inputs import states_of
from engine.core.plan import StepPlan
from engine.core.read import LabelLogprobs, PageSums, Pooled, Read, page_parts
from engine.core.request import PENDING
from engine.core.request_state import NO_SLOT
from engine.core.sampling_params import PromptLogprobs
from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import NotFinite
from engine.executor.base import StepResult
from engine.kv.cache.pages import PagePool, PageState
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.parts.vision_spec import VisionSpec
from engine.sampling.scoring import labelled
from tests.unit.engine.fake_adapters import FakeAdapters
from tests.unit.engine.plan_checks import check_plan

VOCAB = 97
EOS = 96
_BLOCKS_OF_SLOT = 2


@dataclass(frozen=True)
class FakeSpec:
    vocab_size: int = VOCAB
    eos_token_ids: frozenset[int] = frozenset({EOS})
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP
    vision: VisionSpec | None = None


@dataclass(frozen=True)
class Work:
    """What a device knows of a chunk: what was true when it was planned."""

    request_id: int
    slot: int
    pages: list[int]
    start: int
    keys: list[int]
    samples: bool
    state: tuple[int, ...]
    """As `StepInputs.states` has it."""
    namespace: bytes
    before: list[int] | None
    """Keys whose KV is read; None: drafts are among them, so only the last one is checked."""
    scored: range
    """Positions whose next tokens are scored."""
    targets: list[int]
    """Keys of those tokens."""
    num_top: int
    read: Read | None
    """What its request reads from the scored rows."""


class FakeStep:
    def __init__(self, enqueuing: Iterator[None], answer: StepResult, looks: int) -> None:
        self._enqueuing: Iterator[None] | None = enqueuing
        self._answer = answer
        self._looks = looks
        self.proceed()

    def proceed(self) -> bool:
        if self._enqueuing is None:
            return False
        if next(self._enqueuing, self) is self:
            self._enqueuing = None
        return True

    def proceed_early(self) -> bool:
        return self.proceed()

    @property
    def enqueued(self) -> bool:
        return self._enqueuing is None

    def done(self) -> bool:
        self._looks -= self.enqueued
        return self.enqueued and self._looks < 0

    def wait(self) -> None:
        assert self.enqueued

    def result(self) -> StepResult:
        while self.proceed():
            pass
        return self._answer


def begin(namespace: bytes = b"") -> int:
    """The digest before the first position."""
    return zlib.crc32(namespace)


def extend(digest: int, key: int) -> int:
    return zlib.crc32(key.to_bytes(4 if key >= 0 else 8, "little", signed=key < 0), digest)


def next_token(digest: int) -> int:
    return digest % VOCAB


def reference(
    keys: Sequence[int], max_tokens: int, *, ignore_eos: bool = False, namespace: bytes = b""
) -> list[int]:
    """The answer to a prompt with these keys: its tokens, if it has no others."""
    digest, output = begin(namespace), list[int]()
    for key in keys:
        digest = extend(digest, key)
    while len(output) < max_tokens:
        output.append(next_token(digest))
        if output[-1] == EOS and not ignore_eos:
            break
        digest = extend(digest, output[-1])
    return output


def scores(position: int, digests: Sequence[int], num_top: int) -> PromptLogprobs:
    """`digests` at tokens from `position` on stand for their log-probabilities."""
    return PromptLogprobs(
        position,
        [-(digest % 4096) / 64 for digest in digests],
        [1 + digest % VOCAB for digest in digests],
        num_top,
        [(digest + place) % VOCAB for digest in digests for place in range(num_top)],
        [-(digest % 1024) / 32 - place for digest in digests for place in range(num_top)],
    )


def experts(digest: int) -> list[list[int]]:
    """Numbers that stand for the experts of a token with this digest."""
    return [[digest & 0xFF, digest >> 8 & 0xFF, digest >> 16 & 0xFF]]


def reference_experts(keys: Sequence[int], namespace: bytes = b"") -> bytes:
    """The experts of all tokens with these keys, as bytes."""
    digest, rows = begin(namespace), list[int]()
    for key in keys:
        digest = extend(digest, key)
        rows += experts(digest)[0]
    return bytes(rows)


def reference_scores(keys: Sequence[int], num_top: int, namespace: bytes = b"") -> PromptLogprobs:
    """The log-probabilities of all tokens of a prompt but the first."""
    digests = [begin(namespace)]
    for key in keys:
        digests.append(extend(digests[-1], key))
    return scores(1, digests[2:], num_top)


def labels(position: int, digest: int, ids: Sequence[int]) -> LabelLogprobs:
    """`digest` of a prompt of `position` tokens stands for the row that is read."""
    return labelled(position, list(ids), [-(extend(digest, token) % 4096) / 64 for token in ids])


def reference_labels(keys: Sequence[int], ids: Sequence[int], namespace: bytes = b"") -> LabelLogprobs:
    digest = begin(namespace)
    for key in keys:
        digest = extend(digest, key)
    return labels(len(keys), digest, ids)


VECTOR: Final = 2
"""Length of vectors."""


def vector(position: int, digests: Sequence[int], read: Read) -> npt.NDArray[np.float32]:
    """What rows from `position` on add to a vector: whole numbers, so that their order does not matter."""
    weighs = Pooling(read.pooling) is Pooling.WEIGHTED_MEAN
    weights = [position + place + 1 if weighs else 1 for place in range(len(digests))]
    rows = [[w * (d & 0xFF), w * (d >> 8 & 0xFF)] for w, d in zip(weights, digests, strict=True)]
    return np.sum(rows, axis=0).astype("<f4")


def reference_vector(keys: Sequence[int], read: Read, namespace: bytes = b"") -> Pooled:
    digests = [begin(namespace)]
    for key in keys:
        digests.append(extend(digests[-1], key))
    first = 0 if read.needs_all_rows else len(keys) - 1
    return read.finished(Pooled(len(keys), vector(first, digests[1 + first :], read).tobytes()))


class FakeStates:
    """The digests in slots: the same in all numbers of a slot's pages, else the state is damaged."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner

    def __setitem__(self, slot: int, digest: int) -> None:
        for page in self._runner.pages_of_slot(slot):
            self._runner.memory[page][:] = [digest] * self._runner.page_size

    def __getitem__(self, slot: int) -> int:
        found = {number for page in self._runner.pages_of_slot(slot) for number in self._runner.memory[page]}
        return found.pop() if len(found) == 1 else -1


@dataclass
class FakeRunner:
    page_size: int
    num_pages: int
    spec: FakeSpec = field(default_factory=FakeSpec)
    adapters: FakeAdapters | None = None
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """(request id, start, length) of every chunk of every step."""
    fails: set[int] = field(default_factory=set)
    """Ids of requests whose logits are not finite."""
    looks: int = 0
    """Number of times that a polled step is reported as still running."""
    num_state_slots: int = 0
    """If any, a token depends on a state too, which holds the digest of all tokens so far."""
    pool: PagePool | None = None
    """Owners of the pages; None: they are not checked."""
    weights: WeightsIdentity = field(default_factory=lambda: WeightsIdentity("fake"))
    sums: SidecarKind | None = None
    """What pages own if the model computes vectors of all rows."""

    def __post_init__(self) -> None:
        experts_of_token = routed_experts(1, 3, 256)
        self.sidecars = (*KINDS, experts_of_token) if self.sums is None else (self.sums,)
        pages = self.num_pages + self.num_state_slots * _BLOCKS_OF_SLOT
        self.memory = [[-1] * self.page_size for _ in range(pages)]
        self.states = FakeStates(self)
        self.last_tokens: dict[int, int] = {}
        self.enqueuing: FakeStep | None = None

    def refill(self, new: NewWeights) -> None:
        self.weights = WeightsIdentity(str(new.checkpoint), new.version)

    def prepare(self, plan: StepPlan) -> list[Work]:
        check_plan(plan)
        assert all(0 <= token < VOCAB for chunk in plan.chunks for token in chunk.draft), "an unknown token"
        if self.adapters is not None:
            self.adapters.fill(plan.fillings)
            self.adapters.check(plan)
        rows = plan.rows()
        states = [state for chunk in plan.chunks for state in states_of(chunk)]
        self._check_pages(plan)
        self.steps.append([(c.request.id, c.start, c.length) for c in plan.chunks])
        return [
            Work(
                request_id=chunk.request.id,
                slot=chunk.slot,
                pages=chunk.request.pages.copy(),
                start=chunk.start,
                keys=[chunk.draft[-1]] if chunk.draft else list(chunk.request.keys(chunk.start, chunk.end)),
                samples=chunk.samples,
                state=state,
                namespace=chunk.request.namespace,
                before=None if chunk.draft else list(chunk.request.keys(0, chunk.start)),
                scored=chunk.scored,
                targets=list(chunk.request.keys(chunk.scored.start + 1, chunk.scored.stop + 1)),
                num_top=max(chunk.request.sampling.prompt_logprobs or 0, KEPT_ALTERNATIVES),
                read=chunk.request.read,
            )
            for chunk, state in zip(rows, states, strict=True)
        ]

    def launch(self, step: list[Work]) -> FakeStep:
        assert self.enqueuing is None or self.enqueuing.enqueued, "the step before is not complete yet"
        answer = self._unanswered(step)
        self.enqueuing = FakeStep(self._compute(step, answer), answer, self.looks)
        return self.enqueuing

    def _unanswered(self, step: list[Work]) -> StepResult:
        rows = sum(len(work.keys) for work in step)
        return StepResult([], [], {}, routed=np.zeros((rows, 1, 3), np.uint8))

    def _compute(self, step: list[Work], answer: StepResult) -> Iterator[None]:
        right, state = True, begin()
        assert answer.routed is not None
        row = 0
        for work in step:
            yield
            digest = self._attend(work)
            source, own, save, rows, run = work.state or (NO_SLOT,) * 5
            if run:  # else it follows the row before
                right, state = True, begin(work.namespace) if source == NO_SLOT else self.states[source]
            else:
                right = right and answer.tokens[-1] == work.keys[0]
            if work.state and digest != state:
                digest = extend(digest, state & 1)  # neither the one's token nor the other's
            scored: list[int] = []
            for position, key in enumerate(work.keys, work.start):
                digest = extend(digest, self.last_tokens[work.slot] if key == PENDING else key)
                self.write(work.pages, position, digest)
                answer.routed[row] = experts(digest)
                row += 1
                if position in work.scored and work.read is None:
                    scored.append(extend(digest, work.targets[position - work.scored.start]))
                elif position in work.scored:
                    scored.append(digest)
                if save != NO_SLOT and position + 1 == work.start + rows:
                    self.states[save] = digest
            if work.scored and work.read is not None:
                answer.scores.append(self._read(work, work.read, scored))
            elif work.scored:
                answer.scores.append(scores(work.scored.start + 1, scored, work.num_top))
            state = digest
            if work.state and right:
                self.states[own] = digest
            if work.samples:
                if work.request_id in self.fails:
                    answer.errors[len(answer.tokens)] = NotFinite("not finite")
                answer.tokens.append(next_token(digest))
                answer.logprobs.append(None)
                self.last_tokens[work.slot] = answer.tokens[-1]

    def _read(self, work: Work, read: Read, digests: Sequence[int]) -> LabelLogprobs | PageSums | Pooled:
        """`digests`: of the scored rows."""
        start, end = work.scored.start, work.scored.stop
        if not read.pooling:
            return labels(end, digests[-1], read.label_ids)
        if self.sums is None:
            return Pooled(end, vector(start, digests, read).tobytes())
        parts = page_parts(start, end, self.page_size)
        rows = [vector(first, digests[first - start : upto - start], read) for first, upto in parts]
        return PageSums(start, end, self.page_size, np.stack(rows))

    def close(self) -> None:
        pass

    def pages_of_slot(self, slot: int) -> range:
        """The pages of a slot for states."""
        first = self.num_pages + slot * _BLOCKS_OF_SLOT
        return range(first, first + _BLOCKS_OF_SLOT)

    def write(self, pages: list[int], position: int, digest: int) -> None:
        """Into every group's page; there is none where KV arrives that no window reaches."""
        for group in range(len(self.spec.kv_groups)):
            page = self._page(pages, position, group)
            if page != NO_PAGE:
                self.memory[page][position % self.page_size] = digest

    def _check_pages(self, plan: StepPlan) -> None:
        """Every token goes to a page of each group, which its request alone has."""
        writers: dict[int, int] = {}
        for chunk in plan.chunks:
            id, pages = chunk.request.id, chunk.request.pages
            for position in range(chunk.start, chunk.end):
                for group in range(len(self.spec.kv_groups)):
                    page = self._page(pages, position, group)
                    assert page != NO_PAGE, "no page for a token"
                    assert writers.setdefault(page, id) == id, "two requests write a page"
                    if self.pool is not None:
                        assert self.pool.state(page) is PageState.HELD
                        assert self.pool.owner(page) == id, "another one's page"

    def _attend(self, work: Work) -> int:
        """The digest of the origin before a chunk, or another one if a page that it reads is wrong."""
        if work.before is None:
            page = self._page(work.pages, work.start - 1, 0)
            return self.memory[page][(work.start - 1) % self.page_size]
        digest = begin(work.namespace)
        for position, key in enumerate(work.before):
            digest = extend(digest, key)
            for number, group in enumerate(self.spec.kv_groups):
                if position >= group.first_needed(work.start):
                    page = self._page(work.pages, position, number)
                    if page == NO_PAGE or self.memory[page][position % self.page_size] != digest:
                        return ~digest & 0xFFFFFFFF
        return digest

    def _page(self, pages: list[int], position: int, group: int) -> int:
        return pages[position // self.page_size * len(self.spec.kv_groups) + group]
