"""The account of a worker's load."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.kv_groups import RequestPages
from router.placement.account.load import Task, TaskPhase, WorkerLoad
from rpc.baton.v1 import worker_pb2

PAGE = 16


def report(**numbers: int) -> worker_pb2.Load:
    return worker_pb2.Load(total_pages=100, **numbers)


def begin(load: WorkerLoad, phase: TaskPhase, tokens: int = 160, cached: int = 0) -> Task:
    return load.begin(phase, tokens, cached=cached, arrived_at=0.0, now=0.0)


def sent(load: WorkerLoad, command: int, tokens: int) -> None:
    load.sent(command, begin(load, TaskPhase.PREFILL, tokens))


def test_a_task_that_ended_leaves_no_load() -> None:
    load = WorkerLoad()
    first, second = begin(load, TaskPhase.PREFILL), begin(load, TaskPhase.INCOMING)
    assert not load.idle.is_set()
    first.end()
    second.end()
    second.end()
    assert (load.requests, load.tokens, load.queued_tokens) == (0, 0, 0)
    assert load.idle.is_set()


def test_pages_of_what_was_sent_count_until_a_report_covers_them() -> None:
    load = WorkerLoad(RequestPages(16))
    sent(load, 1, 160)
    sent(load, 4, 16)
    load.report(report(free_pages=100), 0)
    assert (load.room().promised, load.room().promised_pages) == (2, 11 + 2)
    load.report(report(free_pages=90, incoming=1), 3)
    room = load.room()
    assert (room.promised, room.promised_pages) == (1, 2)
    assert (room.free_pages, room.incoming) == (90, 1)
    load.report(report(free_pages=89, incoming=2), 4)
    assert (load.room().promised, load.room().promised_pages) == (0, 0)


def test_a_promise_counts_until_it_ends() -> None:
    load = WorkerLoad(RequestPages(16))
    promise = load.promise(32)
    load.report(report(), 1_000)  # no report covers what was not sent
    assert (load.room().promised, load.room().promised_pages, load.incoming) == (1, 3, 1)
    assert load.idle.is_set()
    promise.end()
    assert (load.room().promised, load.room().promised_pages, load.incoming) == (0, 0, 0)


def test_the_share_of_pages_that_are_not_cached_follows_the_last_reservations() -> None:
    load = WorkerLoad(RequestPages(16))
    load.report(report(free_pages=5), 0)
    assert not load.room().has_room(160)
    for _ in range(50):
        load.reserved(1, 160)
    assert load.room().has_room(160)
    sent(load, 1, 160)
    assert load.room().promised_pages == 2
    for _ in range(50):
        load.reserved(10, 160)
    assert not load.room().has_room(160)


def test_reads_with_one_beginning_are_queued_once() -> None:
    load = WorkerLoad()
    for cached in (0, 96, 96):
        begin(load, TaskPhase.READ, 100, cached=cached)
    assert load.queued_tokens == load.tokens == 108


def test_a_prompt_for_another_worker_is_load_until_its_kv_is_sent_and_queued_until_its_first_token() -> None:
    load = WorkerLoad()
    task = begin(load, TaskPhase.PREFILL_FOR_OTHER, 100, cached=32)
    assert (load.queued_tokens, load.incoming, load.tokens) == (100, 0, 68)
    task.progressed(64)
    assert [(prompt.tokens, prompt.computed) for prompt in load.prompts] == [(100, 64)]
    task.produced(1)
    assert (load.queued_tokens, load.requests, load.decodes, [*load.prompts]) == (0, 1, 0, [])
    task.end()
    assert load.requests == 0


# ---------------------------------------------------------------------------------- against a recount


@dataclass(eq=False)
class Entry:
    """What the machine knows of a task."""

    task: Task
    load: WorkerLoad
    phase: TaskPhase
    tokens: int
    cached: int
    computed: int
    context: int = 0


@dataclass(eq=False)
class Account:
    load: WorkerLoad
    commands: int = 0
    unseen: list[tuple[int, int]] = field(default_factory=list)
    """(command, pages)."""


SENT = [TaskPhase.PREFILL, TaskPhase.PREFILL_FOR_OTHER, TaskPhase.INCOMING]
PROMPTS = [TaskPhase.PREFILL, TaskPhase.PREFILL_FOR_OTHER]
BEFORE_DECODE = [TaskPhase.PROMISED, TaskPhase.PREFILL, TaskPhase.INCOMING]


class LoadMachine(RuleBasedStateMachine):
    """Sessions break and the same workers answer again, attempts are retried and move to other workers, and
    clients read slowly: tasks end long after their session, and events come twice, late, or not at all."""

    @initialize()
    def start(self) -> None:
        self.current = [Account(WorkerLoad(RequestPages(PAGE), 8)) for _ in range(3)]
        self.accounts = list(self.current)
        self.entries: list[Entry] = []

    def of(self, load: WorkerLoad, *phases: TaskPhase) -> list[Entry]:
        return [entry for entry in self.entries if entry.load is load and entry.phase in phases]

    @rule(
        place=st.integers(0, 2),
        phase=st.sampled_from([TaskPhase.PROMISED, *SENT]),
        tokens=st.integers(1, 100),
        cached=st.integers(0, 99),
    )
    def begin(self, place: int, phase: TaskPhase, tokens: int, cached: int) -> None:
        account = self.current[place]
        if phase is TaskPhase.PROMISED:
            task, cached = account.load.promise(tokens), 0
        else:
            cached = min(cached, tokens - 1)
            task = begin(account.load, phase, tokens, cached)
            account.commands += 1
            account.load.sent(account.commands, task)
            account.unseen.append((account.commands, -(-tokens // PAGE)))
        self.entries.append(Entry(task, account.load, phase, tokens, cached, cached))

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), computed=st.integers(0, 120))
    def progress(self, data: st.DataObject, computed: int) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        entry.task.progressed(computed)
        if entry.phase in PROMPTS:
            entry.computed = min(computed, entry.tokens - 1)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), count=st.integers(0, 5))
    def produce(self, data: st.DataObject, count: int) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        entry.task.produced(count)
        if entry.phase is TaskPhase.PREFILL:
            entry.phase, entry.context = TaskPhase.DECODE, entry.tokens
        elif entry.phase is TaskPhase.PREFILL_FOR_OTHER:
            entry.phase = TaskPhase.SENDING
        if entry.phase is TaskPhase.DECODE:
            entry.context += count

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), context=st.integers(1, 200))
    def arrive(self, data: st.DataObject, context: int) -> None:
        """A handoff, or an answer that moves."""
        entry = data.draw(st.sampled_from(self.entries))
        entry.task.arrived(context)
        if entry.phase is TaskPhase.INCOMING:
            entry.phase, entry.context = TaskPhase.DECODE, context

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Also of a session that broke, and also twice."""
        entry = data.draw(st.sampled_from(self.entries))
        entry.task.end()
        entry.phase = TaskPhase.ENDED

    @rule(place=st.integers(0, 2))
    def the_stream_breaks_and_the_worker_answers_again(self, place: int) -> None:
        self.current[place] = Account(WorkerLoad(RequestPages(PAGE), 8))
        self.accounts.append(self.current[place])

    @rule(place=st.integers(0, 2), behind=st.integers(0, 3), free=st.integers(0, 100))
    def report(self, place: int, behind: int, free: int) -> None:
        account = self.current[place]
        covered = max(account.commands - behind, 0)
        account.load.report(report(free_pages=free), covered)
        account.unseen = [sent for sent in account.unseen if sent[0] > covered]

    @invariant()
    def every_account_is_what_a_recount_gives(self) -> None:
        for account in getattr(self, "accounts", ()):
            load = account.load
            running = self.of(load, *SENT, TaskPhase.SENDING, TaskPhase.DECODE)
            promised = self.of(load, TaskPhase.PROMISED)
            prompts = self.of(load, *PROMPTS)
            waiting = self.of(load, *BEFORE_DECODE)
            decodes = self.of(load, TaskPhase.DECODE)
            assert (load.requests, load.idle.is_set()) == (len(running), not running)
            assert load.tokens == sum(entry.tokens - entry.cached for entry in running)
            reads = self.of(load, TaskPhase.READ)
            cached = sum(entry.cached for entry in reads)
            assert load.queued_tokens == sum(entry.tokens for entry in prompts) - cached
            assert [(p.tokens, p.computed) for p in load.prompts] == [(e.tokens, e.computed) for e in prompts]
            assert (load.incoming, load.incoming_tokens) == (len(waiting), sum(e.tokens for e in waiting))
            assert (load.decodes, load.context_tokens) == (len(decodes), sum(e.context for e in decodes))
            pages = sum(pages for _, pages in account.unseen)
            pages += sum(-(-entry.tokens // PAGE) for entry in promised)
            room = load.room()
            assert room.promised == len(account.unseen) + len(promised)
            assert room.promised_pages == pages + room.promised


TestLoadMachine = LoadMachine.TestCase
TestLoadMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
