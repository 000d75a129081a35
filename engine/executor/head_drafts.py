"""A head as a source of drafts: EAGLE-3, or one for multi-token prediction.

Row i of the head has token i + 1 and the features of token i, and its KV is at the place of token i: beside
that of the target, at the same page ids. So the head has no page accounts, and its KV is never sent. Of a
target with several groups of layers these are the pages of one that attends to the whole context.

For each request there is a twin, a request whose tokens are those of the head's rows. It begins at the first
page after which all features are here: the prompt's first page; or, after a handoff, a migration or a
promotion, the page in which this worker went on. Cached pages in front belong to it where their rows were
computed for the same tokens. Before each draft its rows go on to the last known token; guesses after that
have rows in pages of the request's slot, so that they need no room in the pool.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from common.progress import Progress, silent
from common.token_array import token_array
from engine.config import EngineConfig
from engine.core.draft_source import Wanted
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING, PageId, Request, RequestId, TokenId
from engine.executor.base import StepInFlight
from engine.executor.head_features import HeadRows, TargetFeatures
from engine.executor.hidden_states import Companion
from engine.executor.runner import ModelRunner
from engine.model_config.draft_heads import drafts_as_head, mtp_head
from engine.model_config.model_spec import ModelSpec
from engine.modeling.models.base import CausalLM
from engine.modeling.models.draft_head import DraftHead

_ITEMSIZE: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def head_of(config: EngineConfig) -> ModelSpec | None:
    """The head that drafts; None: none does. Raises UnsupportedModel for a head of another model."""
    speculation = config.scheduler.speculation
    if speculation is None:
        return None
    if speculation.mtp:
        return mtp_head(
            ModelSpec.from_folder(config.model_path, config.model_impl), ranks=config.tensor_parallel_size
        )
    if speculation.model_path is None:
        return None
    head = ModelSpec.from_folder(speculation.model_path)
    return head if drafts_as_head(ModelSpec.from_folder(config.model_path, config.model_impl), head) else None


def companion_of(config: EngineConfig, head: ModelSpec) -> Companion:
    """What the runner of the target needs to know about its head."""
    own, itemsize = _head_config(config, 1), _ITEMSIZE[config.dtype]
    token_bytes = itemsize * (2 * head.kv_size + head.hidden_size)
    rows = own.max_decode_rows + config.scheduler.prefill_limit(config.max_model_len)
    widest = head.vocab_size + head.widest_mlp + 12 * head.hidden_size
    slots = config.scheduler.max_running_requests * _own_pages(config) * config.page_size
    eagle, size, layers = head.eagle, head.hidden_size, tuple[int, ...]()
    if eagle is None:
        inputs = 2 * size
    else:
        inputs = eagle.num_taps * eagle.target_hidden_size + 2 * (head.q_size + head.kv_size)
        layers = eagle.layers_of(ModelSpec.from_folder(config.model_path, config.model_impl).num_layers)
    weights = itemsize * inputs * size + head.weight_bytes(itemsize)

    def adapt(model: CausalLM) -> None:
        if layers:
            model.tap(layers)

    return Companion(
        adapt,
        page_bytes=config.page_size * token_bytes,
        other_bytes=int(weights) + itemsize * rows * widest + slots * token_bytes,
    )


def _own_pages(config: EngineConfig) -> int:
    """Pages of each slot for the rows of guesses: these begin anywhere in the request's last page."""
    speculation = config.scheduler.speculation
    assert speculation is not None
    return 1 + -(-speculation.num_draft_tokens // config.page_size)


def _head_config(config: EngineConfig, num_pages: int) -> EngineConfig:
    speculation = config.scheduler.speculation
    assert speculation is not None
    own = replace(speculation, model_path=None, mtp=False, drafters=frozenset())
    return replace(
        config,
        model_path=speculation.model_path or config.model_path,
        quantization=None,
        fp8_kv=False,
        num_pages=num_pages,
        max_model_len=config.max_model_len + _own_pages(config) * config.page_size,
        scheduler=replace(config.scheduler, speculation=own),
        tensor_parallel_size=1,
        expert_parallel_size=1,
        cuda_graph_max_tokens=0,
        lora=None,
        return_routed_experts=False,
    )


@dataclass(slots=True)
class _Twin:
    """The rows of one request."""

    request: Request
    """Its prompt is `tokens`; its output are guesses."""
    tokens: array[TokenId]
    """Known tokens of the rows: those of the request after `offset`."""
    admission: int
    """`Request.admissions` when its pages were taken."""
    offset: int
    """The request's token whose features the first row has: the first one of a page."""
    marked: int
    """Leading pages of the rows that are noted as complete."""

    def chunks(self, length: int, *, singly: bool) -> list[Chunk]:
        """The next rows; the last known one samples a guess. `singly`: as decodes, for CUDA graphs."""
        twin = self.request
        start, end = twin.num_computed, twin.num_computed + length
        output: int | None = None
        if end >= len(self.tokens):
            # Noise is that of the token's position in the request, and rows are numbered from `offset`.
            output = self.offset + 1 + end - len(self.tokens)
            twin.output.append(PENDING)
        twin.num_computed = end
        if not singly and length > 1:
            return [Chunk(twin, twin.slot, start, length, output, kind=ChunkKind.PREFILL)]
        chunks = [Chunk(twin, twin.slot, row, 1, None) for row in range(start, end - 1)]
        return [*chunks, Chunk(twin, twin.slot, end - 1, 1, output)]

    def forget_guesses(self) -> None:
        self.request.output.clear()
        self.request.num_computed = len(self.tokens)


class HeadDrafts:
    """A `DraftSource`. Belongs to the thread of its engine."""

    def __init__(
        self, config: EngineConfig, head: ModelSpec, target: ModelRunner, progress: Progress = silent
    ) -> None:
        """`config`: of the target, whose runner has the companion of `companion_of`."""
        self._page_size, self._own_pages = config.page_size, _own_pages(config)
        self._num_pages = target.kv.num_pages
        slots = config.scheduler.max_running_requests
        own = _head_config(config, self._num_pages + slots * self._own_pages)
        self._budget = config.scheduler.prefill_limit(config.max_model_len)
        self._max_rows = own.max_decode_rows
        assert own.scheduler.speculation is not None
        self._most_behind = 1 + own.scheduler.speculation.num_draft_tokens

        def adapt(model: CausalLM) -> None:
            assert isinstance(model, DraftHead)
            model.share(target.model)
            model.make_room(self._budget + self._max_rows)

        self._runner = ModelRunner(own, progress, companion=Companion(adapt), spec=head)
        model = self._runner.model
        assert isinstance(model, DraftHead)
        self._context = min(config.max_model_len, head.max_position)
        groups = target.kv.groups
        self._stride = len(groups)
        self._group = next(number for number, group in enumerate(groups) if group.window is None)
        slots_of_tokens = (own.num_pages + 1) * self._page_size
        self._features = TargetFeatures(model, slots_of_tokens, group=self._group)
        self._runner.show(HeadRows(model, self._features.features, num_requests=slots))
        target.show(self._features)
        self._twins: dict[RequestId, _Twin] = {}
        self._marks: dict[PageId, int] = {}
        """Pages with complete rows, and the tokens that they were computed for; see `_mark`."""

    def draft(self, wanted: Sequence[Wanted]) -> list[list[TokenId]]:
        """Costs a step of the head for each token of the longest draft, and reads their tokens once.

        Of tokens without rows it computes at most a chunk a call, and drafts where none is left.
        """
        twins = {want.request.id: self._followed(want) for want in wanted}
        steps = [self._caught_up([twin for twin in twins.values() if twin is not None])]
        ready = {id: twin for id, twin in twins.items() if twin is not None and twin.request.output}
        limits = {want.request.id: want.limit for want in wanted if want.request.id in ready}
        steps += [
            self._guessed([twin for id, twin in ready.items() if limits[id] > done])
            for done in range(1, max(limits.values(), default=0))
        ]
        found: dict[RequestId, list[TokenId]] = {want.request.id: [] for want in wanted}
        for done, (ids, step) in enumerate(filter(None, steps)):
            result = step.result()
            for row, id in enumerate(ids):
                if row not in result.errors and len(found[id]) == done:
                    found[id].append(result.tokens[row])
        for twin in ready.values():
            twin.forget_guesses()
        return [found[want.request.id] for want in wanted]

    def ended(self, request: RequestId) -> None:
        self._twins.pop(request, None)
        self._features.ended(request)

    def check_pages(self) -> None:
        """It owns none."""

    def close(self) -> None:
        self._runner.close()

    # ------------------------------------------------------------------------------------ twins

    def _followed(self, want: Wanted) -> _Twin | None:
        """The request's twin with all known tokens; None where there are no features of the newest ones."""
        request = want.request
        twin = self._twins.pop(request.id, None)
        since = self._features.computed_since(request)
        if since is None or request.num_known + want.limit > self._context:
            return None
        if twin is None or twin.admission != request.admissions:
            twin = self._begun(request, since)
        if request.num_known < twin.offset + 2:
            return None
        self._twins[request.id] = twin
        twin.tokens.extend(request.tokens(twin.offset + 1 + len(twin.tokens), request.num_known))
        first, end = twin.offset // self._page_size, -(-(request.num_known - 1) // self._page_size)
        own = self._num_pages + request.slot * self._own_pages
        pages = request.pages[first * self._stride + self._group : end * self._stride : self._stride]
        twin.request.pages = [*pages, *range(own, own + self._own_pages)]
        twin.request.slot = request.slot
        self._note(twin, request, range(first + twin.marked, end))
        return twin

    def _page(self, request: Request, block: int) -> PageId:
        return request.pages[block * self._stride + self._group]

    def _note(self, twin: _Twin, request: Request, blocks: range) -> None:
        """Mark the pages of those blocks whose rows are complete, and the others as changing."""
        complete = (twin.offset + twin.request.num_computed) // self._page_size
        for block in blocks:
            if block < complete:
                self._marks[self._page(request, block)] = self._mark(request, block)
                twin.marked += 1
            else:
                self._marks.pop(self._page(request, block), None)

    def _begun(self, request: Request, since: int) -> _Twin:
        """`since`: the first token from which on there are features."""
        first = computed = -(-since // self._page_size)
        while first and self._marks.get(self._page(request, first - 1)) == self._mark(request, first - 1):
            first -= 1
        rows = Request(request.id, (), request.sampling.of_one_token)
        rows.num_computed = (computed - first) * self._page_size
        offset = first * self._page_size
        return _Twin(rows, token_array(rows.prompt), request.admissions, offset, computed - first)

    def _mark(self, request: Request, block: int) -> int:
        """Hash of what the rows of a page are computed from, without what is before the page. If marks of
        different origins are equal by chance, drafts are worse, and no token is wrong."""
        first = block * self._page_size
        return hash((first, request.namespace, request.keys(first, first + self._page_size).tobytes()))

    # ------------------------------------------------------------------------------------ steps

    def _caught_up(self, twins: Sequence[_Twin]) -> _Step | None:
        """Compute the rows that twins lack. Those that lack none then have their first guess."""
        plan, budget, spare = StepPlan(), self._budget, self._max_rows
        for twin in twins:
            rows = twin.request
            lacking = len(rows.prompt) - rows.num_computed
            length = min(lacking, budget)
            if not length:
                continue
            budget -= length
            singly = length == lacking <= min(self._most_behind, spare)
            spare -= length if singly else 1
            plan.chunks += twin.chunks(length, singly=singly)
        plan.chunks.sort(key=lambda chunk: chunk.length == 1)
        return self._launched(plan)

    def _guessed(self, twins: Sequence[_Twin]) -> _Step | None:
        """One guess more of each, enqueued while the device computes the one before it."""
        return self._launched(StepPlan([chunk for twin in twins for chunk in twin.chunks(1, singly=True)]))

    def _launched(self, plan: StepPlan) -> _Step | None:
        if not plan:
            return None
        step = self._runner.launch(self._runner.prepare(plan))
        while step.proceed():
            pass
        return [chunk.request.id for chunk in plan.chunks if chunk.samples], step


_Step: TypeAlias = tuple[list[RequestId], StepInFlight]
"""Whose guesses it samples."""
