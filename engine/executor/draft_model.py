"""A draft model: a small one that guesses what a larger one with the same vocabulary will say.

Leviathan et al. 2022 (arXiv 2211.17192). It has a runner, a KV pool and page accounts of its own, and no
scheduler: for every request that it drafts for there is a shadow, a request with the same tokens, whose KV
follows them. Before each draft a shadow goes back to the last token that it had right and computes what came
after it. That is one token or two after a verify step, and all of them for a request that is new here: after
a handoff, a migration or a failover, and where its pages were needed for others. So nothing is ever sent.

Shadows are sampled with the parameters, the seed and the positions of their requests, and therefore with the
same noise: where both models find the same tokens likely, they draw the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from common.progress import Progress, silent
from engine.config import EngineConfig, SpeculationConfig
from engine.core.draft_source import Wanted
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING, Request, RequestId, TokenId
from engine.errors import EngineError
from engine.executor.base import StepInFlight
from engine.executor.runner import ModelRunner
from engine.kv.cache.pages import PageCounts
from engine.kv.manager.kv_manager import KVManager

_POOL_TOKENS: Final = 131_072
"""Size of the draft model's KV pool, unless the target's is known and smaller. For a 1B model it takes 4 GB.
"""
_BEHIND: Final = 2
"""Tokens that a shadow lacks at most if all its guesses were right: the last one, and the one after it."""


def draft_engine_config(config: EngineConfig) -> EngineConfig:
    """The draft model's own: on one rank, with a pool of a fixed size."""
    speculation = config.scheduler.speculation
    assert speculation is not None
    assert speculation.model_path is not None
    most = -(-max(_POOL_TOKENS, config.max_model_len) // config.page_size)
    return replace(
        config,
        model_path=speculation.model_path,
        quantization=None,
        fp8_kv=False,
        num_pages=min(config.num_pages or most, most),
        scheduler=replace(
            config.scheduler,
            speculation=SpeculationConfig(num_draft_tokens=_BEHIND - 1, drafters=frozenset()),
        ),
        tensor_parallel_size=1,
        expert_parallel_size=1,
        cuda_graph_max_tokens=0,
        lora=None,
        language_model_only=True,
        return_routed_experts=False,
    )


@dataclass(slots=True)
class _Shadow:
    request: Request
    known: int
    """Tokens of its output that the target has confirmed; those after them are guesses."""


class DraftModel:
    """A `DraftSource`. Belongs to the thread of its engine."""

    def __init__(self, config: EngineConfig, runner: ModelRunner) -> None:
        """`config`: see `draft_engine_config`. Raises EngineError for a model whose KV cannot go back."""
        spec = runner.spec
        if spec.recurrent is not None or any(group.window is not None for group in spec.kv_groups):
            raise EngineError(
                f"{config.model_path.name} cannot draft: its layers have windows or a recurrent state; use a"
                " --speculative-model whose layers all attend to all tokens"
            )
        self._runner = runner
        self._kv = KVManager(runner.kv.num_pages, config.page_size, radix_cache=config.radix_cache)
        self._vocab_size = spec.vocab_size
        self._context = min(config.max_model_len, spec.max_position)
        self._budget = config.scheduler.prefill_limit(self._context)
        self._max_rows = config.max_decode_rows
        self._shadows: dict[RequestId, _Shadow] = {}
        """In order of their last draft."""

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress = silent) -> DraftModel | None:
        """The one that `config` names, None without one. On a GPU, load it before the target's runner, whose
        pool takes the memory that is left."""
        if config.scheduler.speculation is None or config.scheduler.speculation.model_path is None:
            return None
        own = draft_engine_config(config)
        return cls(own, ModelRunner(own, progress))

    def draft(self, wanted: Sequence[Wanted]) -> list[list[TokenId]]:
        """Costs a step of the model for each token of the longest draft, and reads their tokens once.

        Of new requests it computes at most a chunk of prompt tokens a call, and drafts for those that are
        then complete.
        """
        asked = {want.request.id for want in wanted}
        shadows = [self._followed(want, asked) for want in wanted]
        found: dict[RequestId, list[TokenId]] = self._catch_up([s for s in shadows if s is not None])
        limits = {want.request.id: want.limit for want in wanted}
        self._continue([s for s in shadows if s is not None and s.request.id in found], found, limits)
        return [found.get(want.request.id, [])[: want.limit] for want in wanted]

    def ended(self, request: RequestId) -> None:
        if (shadow := self._shadows.pop(request, None)) is not None:
            self._kv.release(shadow.request)

    def check_pages(self) -> PageCounts:
        """Raises PageLeak unless every page has exactly one owner."""
        return self._kv.check([shadow.request for shadow in self._shadows.values()])

    def close(self) -> None:
        self._runner.close()

    # ---------------------------------------------------------------------------------- shadows

    def _followed(self, want: Wanted, asked: set[RequestId]) -> _Shadow | None:
        """The shadow with all tokens that its request is known to have, and pages for `want.limit` more.

        None if there are too few pages, or if the request is beyond this model's context or vocabulary.
        """
        request = want.request
        if request.num_known + want.limit > self._context:
            return None
        shadow = self._shadows.pop(request.id, None)
        if shadow is None:
            shadow = self._begun(request, asked)
        elif not self._follow(shadow, request):
            self._kv.release(shadow.request)
            return None
        if shadow is None:
            return None
        self._shadows[request.id] = shadow
        shadow.request.slot = request.slot
        lacking = shadow.request.num_pending + want.limit - 1
        while self._kv.room_for(shadow.request, lacking, spare=0) < lacking:
            if not self._forget_another(asked):
                return None
        return shadow

    def _begun(self, request: Request, asked: set[RequestId]) -> _Shadow | None:
        known = request.num_known - len(request.prompt)
        tokens = request.tokens(0, request.num_known)
        if max(tokens) >= self._vocab_size:
            return None
        twin = Request(
            request.id,
            request.prompt,
            request.sampling.of_one_token,
            output=request.output[:known],
            namespace=request.namespace,
            prompt_keys=request.prompt_keys,
        )
        while not self._kv.admit(twin, lambda _: 0):
            if not self._forget_another(asked):
                return None
        return _Shadow(twin, known)

    def _follow(self, shadow: _Shadow, request: Request) -> bool:
        """Replace guesses by what is known now. False for a token that this model does not have."""
        twin, before = shadow.request, shadow.known
        known = request.num_known - len(request.prompt)
        news = request.output[before:known]
        if news and max(news) >= self._vocab_size:
            return False
        right = _common(twin.output[before:], news)
        twin.output[before:] = news
        shadow.known = known
        # The last token is computed in any case, for the logits after it.
        twin.num_computed = min(twin.num_computed, len(twin.prompt) + before + right, twin.num_tokens - 1)
        return True

    def _forget_another(self, asked: set[RequestId]) -> bool:
        """Take the pages of the request that has not drafted for longest; False: all others draft now."""
        oldest = next((id for id in self._shadows if id not in asked), None)
        if oldest is not None:
            self.ended(oldest)
        return oldest is not None

    # ------------------------------------------------------------------------------------ steps

    def _catch_up(self, shadows: Sequence[_Shadow]) -> dict[RequestId, list[TokenId]]:
        """Compute what shadows lack, in one step; returns the first guess of those that are complete."""
        plan, budget, spare = StepPlan(), self._budget, self._max_rows - len(shadows)
        for shadow in shadows:
            twin = shadow.request
            length = min(twin.num_pending, budget)
            if not length:
                continue
            chunk = _pending(twin, length, by_rows=twin.num_pending <= min(_BEHIND, 1 + spare))
            budget -= length
            spare -= len(chunk.draft)
            plan.num_drafted += len(chunk.draft)
            plan.chunks.append(chunk)
            twin.num_computed += length
        if not plan:
            return {}
        plan.chunks.sort(key=lambda chunk: (_ORDER.index(chunk.kind), chunk.length == 1))
        result = self._launched(plan).result()
        guesses = {row.request.id: k for k, row in enumerate(plan.sampling())}  # the last row of each
        for chunk in plan.chunks:
            self._kv.store(chunk.request, chunk.end)
        return {id: [result.tokens[row]] for id, row in guesses.items() if row not in result.errors}

    def _continue(
        self,
        shadows: Sequence[_Shadow],
        found: dict[RequestId, list[TokenId]],
        limits: dict[RequestId, int],
    ) -> None:
        """Decode the further guesses. Each step is enqueued while the one before it runs."""
        for shadow in shadows:
            shadow.request.output += found[shadow.request.id]
        steps: list[tuple[list[Request], StepInFlight]] = []
        for done in range(1, max(limits.values(), default=0)):
            twins = [s.request for s in shadows if limits[s.request.id] > done]
            if not twins:
                break
            chunks = [_pending(twin, 1, by_rows=False) for twin in twins]
            steps.append((twins, self._launched(StepPlan(chunks))))
            for twin in twins:
                twin.num_computed += 1
                twin.output.append(PENDING)
        for done, (twins, step) in enumerate(steps, 1):
            result = step.result()
            for row, twin in enumerate(twins):
                shadow = self._shadows[twin.id]
                twin.output[shadow.known + done] = result.tokens[row]
                if row not in result.errors and len(found[twin.id]) == done:
                    found[twin.id].append(result.tokens[row])

    def _launched(self, plan: StepPlan) -> StepInFlight:
        step = self._runner.launch(self._runner.prepare(plan))
        while step.proceed():
            pass
        return step


_ORDER: Final = (ChunkKind.PREFILL, ChunkKind.VERIFY, ChunkKind.DECODE)


def _pending(twin: Request, length: int, *, by_rows: bool) -> Chunk:
    """The next `length` tokens. `by_rows`: each as a decode, so that CUDA graphs compute them."""
    start, end = twin.num_computed, twin.num_computed + length
    samples = end == twin.num_tokens
    output = len(twin.output) if samples else None
    if length == 1:
        return Chunk(twin, twin.slot, start, 1, output)
    if samples and by_rows and start + 1 >= len(twin.prompt):
        draft = tuple(twin.tokens(start + 1, end))
        first = start + 1 - len(twin.prompt)
        return Chunk(twin, twin.slot, start, length, first, kind=ChunkKind.VERIFY, draft=draft)
    return Chunk(twin, twin.slot, start, length, output, kind=ChunkKind.PREFILL)


def _common(guessed: Sequence[TokenId], said: Sequence[TokenId]) -> int:
    """Length of the longest common prefix."""
    for index, (guess, token) in enumerate(zip(guessed, said, strict=False)):
        if guess != token:
            return index
    return min(len(guessed), len(said))
