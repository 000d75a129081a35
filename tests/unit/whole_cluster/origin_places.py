"""The places that compare, name or store KV, and how many pages a prompt gets there from another one.

Each takes two questions, and tells how many pages of the second one it finds by what the first one has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import Any, Final

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.core.retention import Retention
from engine.executor.draft_model import DraftModel
from engine.executor.head_drafts import HeadDrafts
from engine.loop.engine import Engine
from engine.sched.drafts.speculator import Speculator
from engine.sched.prefixes_in_flight import PrefixesInFlight
from engine.sched.queue.prefix_ranker import PrefixRanker
from router.dispatch.kv_events import feed
from router.dispatch.kv_events.blocks import BlocksStored, CachedBlocks
from router.placement.account.cached_prefixes import CachedPrefixes
from tests.unit.engine.engines import make_engine, run
from tests.unit.engine.fake_runner import VOCAB
from tests.unit.engine.kv.tiers.tiered import Tiered
from tests.unit.whole_cluster.questions import ADAPTERS, Question
from tests.unit.whole_cluster.test_cluster_machine import ClusterMachine
from tests.unit.whole_cluster.whole_worker import PAGE, Kind
from worker import job_starter
from worker.session.jobs import Job

_ids = count(1)


def ask(
    prompt: Sequence[int],
    image: bytes = b"",
    salt: str = "",
    adapter: str = "",
    *,
    places: Sequence[int] = (0, 0, 0, 0),
    pulled: int = 0,
    length: int = 1,
) -> Question:
    """`places`, `pulled`: see `Client`. With a `length` of 1, only the KV of the prompt is computed."""
    more = {"adapter": adapter}
    return Question(list(prompt), image, salt, length, list(places), 0, pulled, 0.0, 1, **more)


def shared(first: Question, second: Question) -> int:
    """Pages of the second one that have the origin of those of the first one, and need not be computed."""
    if first.namespace != second.namespace:
        return 0
    pairs = zip(first.keys, second.keys, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return min(same, len(second.prompt) - 1) // PAGE


def request_of(question: Question, retention: Retention | None = None) -> Request:
    """As a worker gets it."""
    sequence, _ = question.sequence()
    request = job_starter.request_from_proto(sequence.work(next(_ids)), 0.0)
    request.retention = retention
    return request


def computed(engine: Engine, question: Question, retention: Retention | None = None) -> Request:
    request = request_of(question, retention)
    run(engine, request)
    _, right = question.sequence()
    assert request.output == right
    return request


def hits(request: Request) -> int:
    assert request.num_cached is not None
    return request.num_cached // PAGE


def leading(found: Sequence[bool], second: Question) -> int:
    """The first ones that are true, of those that need not be computed."""
    count = sum(1 for _ in takewhile(bool, found))
    return min(count, (len(second.prompt) - 1) // PAGE)


# ------------------------------------------------------------------------------ a worker's pool


def in_pool(first: Question, second: Question, **settings: Any) -> int:
    engine = make_engine(page_size=PAGE, adapters=ADAPTERS, **settings)
    computed(engine, first)
    expected = engine.kv.cached_tokens(request_of(second)) // PAGE
    found = hits(computed(engine, second))
    assert expected == found
    return found


def in_states(first: Question, second: Question) -> int:
    """A hit ends at a checkpoint: that of the first one is at its last page boundary."""
    found = in_pool(first, second, num_state_slots=8)
    least = shared(first, second) if first.keys == second.keys else 0
    assert least <= found <= shared(first, second)
    return shared(first, second)


def computed_together(first: Question, second: Question) -> int:
    """The second one catches up with pages that the first one computes."""
    engine = make_engine(page_size=PAGE, adapters=ADAPTERS, chunk_budget=PAGE)
    requests = [request_of(question) for question in (first, second)]
    run(engine, *requests)
    for question, request in zip((first, second), requests, strict=True):
        assert request.output == question.sequence()[1]
    runner: Any = engine.runner
    rows = sum(length for step in runner.steps for _, _, length in step)
    return (len(first.prompt) + len(second.prompt) - rows) // PAGE


def in_flight(first: Question, second: Question) -> int:
    """Pages that the second one would wait for."""
    kv = make_engine(page_size=PAGE, adapters=ADAPTERS).kv
    one, two = request_of(first), request_of(second)
    assert kv.admit(one, lambda _: 0)
    assert kv.admit(two, lambda _: 0)
    chunks = PrefixesInFlight(PAGE, kv.locks.of)
    starts = range(0, min(len(first.prompt), len(second.prompt)) - PAGE + 1, PAGE)
    for start in starts:
        chunks.add(one, start)
    found = [chunks.shared(two, start) for start in starts]
    assert found == sorted(found, reverse=True), "a page after another prefix"
    return leading(found, second)


def ranked(first: Question, second: Question) -> int:
    engine = make_engine(page_size=PAGE, adapters=ADAPTERS)
    computed(engine, first)
    ranker, request = PrefixRanker(engine.kv.cache, depth_first=False), request_of(second)
    ranker.order([request], lambda each: each)
    return ranker._lookups[request.scheduling.number].pages


def forgotten(first: Question, second: Question) -> int:
    """Pages of the first one that are dropped when those of the second one are not trusted."""
    engine = make_engine(page_size=PAGE, adapters=ADAPTERS)
    computed(engine, first)
    before = engine.kv.cache.num_pages
    engine.kv.forget(request_of(second))
    dropped = before - engine.kv.cache.num_pages
    return min(dropped, shared(first, second)) if shared(first, second) else dropped


def retained(first: Question, second: Question) -> int:
    engine = make_engine(page_size=PAGE, adapters=ADAPTERS, retained_kv_share=0.5)
    engine.kv.cache.keep_journal()
    computed(engine, first, Retention("k", 60.0))
    blocks = second.sequence()[0].blocks(PAGE)
    return leading([block in engine.kv.retentions for block in blocks], second)


# ------------------------------------------------------------------------------ tiers, other workers


def on_tiers(first: Question, second: Question) -> int:
    tiered = Tiered(adapters=ADAPTERS)
    tiered.answer(request_of(first))
    tiered.engine.kv.clear(None)
    request = request_of(second)
    tiered.answer(request)
    return sum(tiered.promoted(request).values()) // PAGE


def kept_of_a_failed_handoff(first: Question, second: Question) -> int:
    kv = make_engine(page_size=PAGE, adapters=ADAPTERS).kv
    reservation = kv.reserve(request_of(first), 0)
    assert reservation is not None
    kv.free_reservation(reservation, verified=len(reservation.incoming))
    return kv.cached_tokens(request_of(second)) // PAGE


def digested(first: Question, second: Question) -> int:
    """Pages whose handoff the other worker would accept."""
    digests = []
    for question in (first, second):
        sequence, _ = question.sequence()
        job = Job(request_of(question), None, 0.0, 0.0, sequence.sampling)  # type: ignore[arg-type]
        digests.append([job.digest(end) for end in range(PAGE, len(question.prompt) + 1, PAGE)])
    return leading([one == two for one, two in zip(*digests, strict=False)], second)


def _on_cluster(
    before: list[Question], second: Question, act: Callable[[ClusterMachine], None] = lambda _: None
) -> int:
    """Pages that the second one has found on its first worker, when all is done."""
    machine = ClusterMachine()
    machine.start(24, 8, False, True, Kind(), {}, 0.0, before)
    worker = machine.workers[second.places[0]]
    before = worker.engine.stats().cache_hit_tokens
    machine.clients_come([second], rounds=3)
    act(machine)
    machine.go_on(50)
    found = worker.engine.stats().cache_hit_tokens - before
    machine.teardown()
    return found // PAGE


def pulled(first: Question, second: Question) -> int:
    """Pages that a worker gets that has cached the same tokens without an origin."""
    source, asked = ask(*first.origin, places=[2] * 4), ask(*second.origin, places=[0, 0, 2, 2], pulled=9)
    plain = ask(second.prompt)
    from_peer, cached = shared(first, second), shared(plain, second)
    assert _on_cluster([source, plain], asked) == max(from_peer, cached)
    return from_peer


def handed_off(first: Question, second: Question) -> int:
    """The decode worker has the first one's pages, too."""
    questions = [ask(*each.origin, places=[0, 1, 0, 1], length=8) for each in (first, second)]
    return _on_cluster(questions[:1], questions[1])


def moved(first: Question, second: Question) -> int:
    """To a worker that has the first one's pages. Only the answer tells: it would be wrong."""
    settled, asked = ask(*first.origin, places=[1] * 4), ask(*second.origin, length=40)

    def move(machine: ClusterMachine) -> None:
        machine.move(0, 1, 50)
        assert [each.result() for each in machine.moves] == [True]

    assert _on_cluster([settled], asked, move) == 0
    return shared(first, second)


# ------------------------------------------------------------------------------ the router


def in_the_routers_index(first: Question, second: Question) -> int:
    engine, known = make_engine(page_size=PAGE, adapters=ADAPTERS), CachedPrefixes(PAGE)
    engine.kv.cache.keep_journal()
    computed(engine, first)
    for change in engine.kv.take_changes():
        known.stored(change.blocks)
    return known.matching_tokens(second.sequence()[0].blocks(PAGE)) // PAGE


def in_events(first: Question, second: Question) -> int:
    """Blocks that a subscriber of KV events knows, by their hashes, and by what it is told of them."""
    told = []
    for question in (first, second):
        blocks, (sequence, _) = CachedBlocks(PAGE), question.sequence()
        blocks.stored("w", sequence.blocks(PAGE))
        blocks.learn(list(sequence.prompt), feed.named_by(sequence.prototype))
        event = next(iter(blocks.take()), None)
        assert isinstance(event, BlocksStored)
        parts = [event.tokens[at : at + PAGE] for at in range(0, len(event.tokens), PAGE)]
        extra = [event.extra_keys.get(block) for block in event.blocks]
        told.append((event.blocks, list(zip(parts, extra, strict=True))))
    (hashes, contents), (others, of_others) = told
    by_hash = leading([one == two for one, two in zip(hashes, others, strict=False)], second)
    by_content = leading([one == two for one, two in zip(contents, of_others, strict=False)], second)
    assert by_hash == by_content
    return by_hash


# ------------------------------------------------------------------------------ drafts


def in_a_draft_models_pool(first: Question, second: Question) -> int:
    kv = make_engine(page_size=PAGE, adapters=ADAPTERS).kv
    model = DraftModel.__new__(DraftModel)
    model._kv, model._vocab_size = kv, VOCAB
    found = 0
    for question in (first, second):
        shadow = model._begun(request_of(question), set())
        assert shadow is not None
        found = hits(shadow.request)
        shadow.request.num_computed = shadow.request.num_tokens
        kv.release(shadow.request)
    return found


def in_marks_of_draft_heads(first: Question, second: Question) -> int:
    heads = HeadDrafts.__new__(HeadDrafts)
    heads._page_size = PAGE
    one, two = request_of(first), request_of(second)
    blocks = range(min(len(first.prompt), len(second.prompt)) // PAGE)
    return leading([heads._mark(one, block) == heads._mark(two, block) for block in blocks], second)


def in_earlier_answers(first: Question, second: Question) -> int:
    """Earlier answers are kept for a namespace, whatever the prompts were."""
    speculator = Speculator(SpeculationConfig(), context=64, vocab_size=VOCAB)
    kept = speculator._answers_of(request_of(first))
    same = second
    if first.namespace != second.namespace:
        same = ask(second.prompt, second.image, first.salt, first.adapter)
    return shared(first, same) if speculator._answers_of(request_of(second)) is kept else 0


PLACES: Final[Sequence[Callable[[Question, Question], int]]] = (
    in_pool,
    in_states,
    computed_together,
    in_flight,
    ranked,
    forgotten,
    retained,
    on_tiers,
    kept_of_a_failed_handoff,
    digested,
    pulled,
    handed_off,
    moved,
    in_the_routers_index,
    in_events,
    in_a_draft_models_pool,
    in_marks_of_draft_heads,
    in_earlier_answers,
)
