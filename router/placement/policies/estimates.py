"""What a choice of workers would do to a request, and to those that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.placement.policies.predict import Pace, miss, pace_of, prefill_times, running_answers, slot_wait
from router.placement.policy import ConsideredPair
from router.placement.sources import KVSource, Ways, best_source, ways
from router.placement.view import ClusterView, RequestView, Targets, WorkerId, WorkerView

_TTFT_UNCERTAINTY: Final = 0.15
"""Relative deviation of predicted TTFT: how gradually a miss becomes certain around a target."""
_TPOT_UNCERTAINTY: Final = 0.015
"""The same of TPOT near its target, where the scheduler's TPOT controller bounds it."""
_UNBOUNDED_UNCERTAINTY: Final = 0.15
"""The same where decodes alone are slower than the target: TPOT then depends on how soon others end."""
_DELAY_WEIGHT: Final = 0.02
"""What a delay of a whole target costs, in misses: prefers the faster of two choices that miss alike."""
_LATE_WEIGHT: Final = 0.2
"""Cost, in expected misses, of each further TTFT target by which a first token is late."""


@dataclass(frozen=True, slots=True)
class PrefillEstimate:
    """What to expect of a worker if it prefills the prompt."""

    worker: WorkerView
    seconds: float
    """From now until the prompt is computed."""
    misses: float
    """Additional expected TTFT misses among the prompts that are there already."""
    delay: float
    """Additional delay of those prompts, in TTFT targets."""
    tokens: int
    """Prompt tokens that it would compute."""
    work: float
    """These, and the tokens that it would compute in the time in which it encodes images."""
    source: KVSource | None
    """The worker whose cached KV it would get first, if that is faster."""


class Estimates:
    """Predicts from the newest views of the workers. Every estimate costs O(prompts of its workers)."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self._seen: dict[WorkerId, tuple[WorkerView, Pace, int]] = {}
        """Last view of each worker, with its pace and its prompt tokens."""

    def look(self, workers: Sequence[WorkerView]) -> None:
        """Views are immutable: what was computed for one holds as long as the caller gives the same."""
        seen = self._seen
        for worker in workers:
            known = seen.get(worker.id)
            if known is None or known[0] is not worker:
                seen[worker.id] = worker, _pace(worker), worker.prompt_tokens
        if len(seen) > len(workers):
            self._seen = {worker.id: seen[worker.id] for worker in workers}

    def pace(self, worker: WorkerView) -> Pace:
        return self._seen[worker.id][1]

    def wait(self, worker: WorkerView, tokens: int) -> float:
        """Seconds until this many additional prompt tokens are computed, after all that is queued."""
        _, pace, queued = self._seen[worker.id]
        return (tokens + queued) / pace.prefill_rate + worker.encode_s

    def prefill(self, request: RequestView, view: ClusterView, worker: WorkerView) -> PrefillEstimate:
        pace = self.pace(worker)
        tokens = request.prompt_tokens - request.cached_on(worker)
        source = best_source(request, view, worker, pace.prefill_rate)
        if source is not None:
            tokens -= source.fresh_tokens
        # While images are encoded, the engine computes no prompts: that time counts as further tokens.
        per_image_token = worker.image_token_s * pace.prefill_rate
        before = [prompt.tokens + per_image_token * prompt.image_tokens for prompt in worker.prompts]
        work = tokens + request.encode_s(worker) * pace.prefill_rate
        wait = max(self._slot_wait(worker, view), self._page_wait(request, view, worker))
        times = [max(time, wait) for time in prefill_times([*before, work], pace)]
        in_flight = _in_flight(worker, pace)
        misses = delay = 0.0
        if before:
            alone = prefill_times(before, pace)
            for prompt, then, now in zip(worker.prompts, times, alone, strict=False):
                age = view.now - prompt.arrived + in_flight
                target = self.targets.ttft_s
                misses += miss((age + then) / target, _TTFT_UNCERTAINTY) - miss(
                    (age + now) / target, _TTFT_UNCERTAINTY
                )
                misses += _LATE_WEIGHT * (max(1.0, (age + then) / target) - max(1.0, (age + now) / target))
                delay += (then - now) / target
        # It is queued behind the others when the KV has come.
        comes_s = view.promotion_s(
            worker.id, min(request.on_tiers.get(worker.id, 0), request.cached_on(worker))
        )
        comes_s = max(comes_s, 0.0 if source is None else source.pull_s, request.adapter_wait_s(worker))
        if comes_s:
            times[-1] = max(times[-1], comes_s + work / pace.prefill_rate)
        times[-1] = max(times[-1], _awaited_s(request, worker, pace))
        return PrefillEstimate(worker, in_flight + times[-1], misses, delay, tokens, work, source)

    def pair(
        self, request: RequestView, view: ClusterView, prefill: PrefillEstimate, decode_worker: WorkerView
    ) -> ConsideredPair:
        """One worker computes the prompt and the first token, this or another one the rest."""
        prefill_worker = prefill.worker
        local = prefill_worker.id == decode_worker.id
        tokens, work = (prefill.tokens, prefill.work) if local else (0, 0.0)
        tpot, misses, delay = self._writing(request, decode_worker, tokens, work)
        if not local:
            more, longer = self._slowdown(prefill_worker, request, prefill.work)
            misses, delay = misses + more, delay + longer
            moved = (request.prompt_tokens - request.cached_on(decode_worker)) * view.kv_bytes_per_token
            handoff = view.link_between(prefill_worker.id, decode_worker.id).seconds(moved)
            handoff += self._page_wait(request, view, decode_worker)
            # Its adapter is loaded there while the prompt is computed.
            handoff += max(0.0, request.adapter_wait_s(decode_worker) - prefill.seconds)
            tpot += handoff / max(request.expected_output - 1, 1)
        ttft = view.now - request.arrived + prefill.seconds
        late, slow = ttft / self.targets.ttft_s, tpot / self.targets.tpot_s
        own = 1 - (1 - miss(late, _TTFT_UNCERTAINTY)) * (1 - self._slow(self.pace(decode_worker), tpot))
        misses += prefill.misses + own + _LATE_WEIGHT * max(0.0, late - 1.0)
        cost = misses + _DELAY_WEIGHT * (delay + prefill.delay + late + slow)
        return ConsideredPair(prefill_worker.id, decode_worker.id, ttft, tpot, misses, cost, prefill.source)

    def _writing(
        self, request: RequestView, worker: WorkerView, prompt_tokens: int, work: float
    ) -> tuple[float, float, float]:
        """TPOT of this request there, and the misses and delays that it causes: its decode, and its prompt
        and images if these are computed there too. `work`: see `PrefillEstimate`."""
        decodes, context = running_answers(worker)
        pairs = _pairs(worker)
        more = pace_of(worker, *running_answers(worker, 1, request.prompt_tokens), pairs)
        before = pace_of(worker, decodes, context, pairs) if decodes else more
        own = more.tpot(self._prefill_share(worker, more, request, prompt_tokens))
        slower = more.tpot(self._prefill_share(worker, more, request, work))
        faster = before.tpot(self._prefill_share(worker, before, request, 0))
        target = self.targets.tpot_s
        change = self._slow(more, slower) - self._slow(before, faster)
        # Prompts that are there already are read more slowly beside one more decode.
        queued = worker.prompt_tokens / more.prefill_rate - worker.prompt_tokens / before.prefill_rate
        delay = decodes * (slower - faster) / target + max(0.0, queued) / self.targets.ttft_s
        return own, decodes * change, delay

    def _slowdown(
        self, worker: WorkerView, request: RequestView, prompt_tokens: float
    ) -> tuple[float, float]:
        """The misses and delays that a prompt causes whose answer is decoded elsewhere."""
        decodes, context = running_answers(worker)
        if not decodes:
            return 0.0, 0.0
        pace = pace_of(worker, decodes, context, _pairs(worker))
        slower = pace.tpot(self._prefill_share(worker, pace, request, prompt_tokens))
        faster = pace.tpot(self._prefill_share(worker, pace, request, 0))
        target = self.targets.tpot_s
        change = self._slow(pace, slower) - self._slow(pace, faster)
        return decodes * change, decodes * (slower - faster) / target

    def _slow(self, pace: Pace, tpot: float) -> float:
        """Probability that an answer misses its TPOT target on a worker of that pace."""
        bounded = pace.token_s <= self.targets.tpot_s
        return miss(tpot / self.targets.tpot_s, _TPOT_UNCERTAINTY if bounded else _UNBOUNDED_UNCERTAINTY)

    def _slot_wait(self, worker: WorkerView, view: ClusterView) -> float:
        return slot_wait(worker, self._usual_tpot(worker), view.demand.output_tokens)

    def _usual_tpot(self, worker: WorkerView) -> float:
        pace = self.pace(worker)
        return pace.tpot(min(1.0, worker.prompt_rate / pace.prefill_rate))

    def _page_wait(self, request: RequestView, view: ClusterView, worker: WorkerView) -> float:
        """Seconds until a worker has pages for what its pool lacks of the request, behind those that wait
        for some. Pages become free at a steady rate, all that are held in the time of an answer."""
        room, cached = worker.room, request.cached_on(worker)
        in_pool = max(0, cached - request.on_tiers.get(worker.id, 0))
        pages = max(1, room.pages.of(request.prompt_tokens) - room.pages.of(in_pool))
        lacking = (1 + room.starved) * pages + room.promised_pages - worker.available_pages
        held = worker.total_pages - worker.available_pages
        if lacking <= 0 or held <= 0:
            return 0.0
        demand = view.demand
        length = demand.output_tokens if demand.requests_per_s else request.expected_output
        return lacking / held * length * self._usual_tpot(worker)

    def _prefill_share(self, worker: WorkerView, pace: Pace, request: RequestView, more: float) -> float:
        """Share of the time, while an answer is written, in which steps have prompts in them."""
        horizon = max(request.expected_output * pace.token_s, 1e-6)
        queued = (worker.prompt_tokens + more) / pace.prefill_rate / horizon
        usual = worker.prompt_rate / pace.prefill_rate
        return min(1.0, max(queued, usual + more / pace.prefill_rate / horizon))


def source_for(worker_id: WorkerId, request: RequestView, view: ClusterView) -> KVSource | None:
    """Whose cached KV a worker that was chosen otherwise should get before it computes the rest."""
    worker = _worker(view, worker_id)
    return best_source(request, view, worker, _pace(worker).prefill_rate)


def ways_for(worker_id: WorkerId, request: RequestView, view: ClusterView) -> Ways:
    """What each way to have the prompt's prefix at the chosen worker takes."""
    worker = _worker(view, worker_id)
    return ways(request, view, worker, _pace(worker).prefill_rate)


def _worker(view: ClusterView, worker_id: WorkerId) -> WorkerView:
    return next(worker for worker in view.workers if worker.id == worker_id)


def _pace(worker: WorkerView) -> Pace:
    decodes, context = running_answers(worker)
    return pace_of(worker, decodes, context, _pairs(worker))


def _pairs(worker: WorkerView) -> float:
    """Tokens that a prompt token attends to, on average over the prompts there."""
    total = worker.prompt_tokens
    if not total:
        return 1000.0
    return sum(p.tokens * (p.computed + p.tokens / 2) for p in worker.prompts) / total


def _awaited_s(request: RequestView, worker: WorkerView, pace: Pace) -> float:
    """Seconds until the prompt is computed after its images have come from an encode worker."""
    if (awaited := request.awaited) is None:
        return 0.0
    first = awaited.missing_from(request.cached_on(worker))
    return 0.0 if first is None else awaited.seconds + (request.prompt_tokens - first) / pace.prefill_rate


def _in_flight(worker: WorkerView, pace: Pace) -> float:
    """What is left of the step in flight, on average."""
    if worker.prompts:
        share = min(1.0, worker.prompt_tokens / pace.mixed_tokens)
        return 0.5 * (pace.plain_s + share * (pace.mixed_s - pace.plain_s))
    return 0.5 * pace.plain_s if worker.decodes else 0.0
