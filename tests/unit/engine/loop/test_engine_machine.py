"""Hypothesis drives an engine: every request gets the reference's tokens, and no page is lost."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from common.block_key import root_key
from common.kv_groups import group_layers
from common.origin import activation_key, last_invocation, namespace_of
from common.token_array import token_array
from engine.config import Batching, Forecast, LoraConfig, Policy
from engine.core.read import Read
from engine.core.request import Request
from engine.errors import AdapterRefused
from engine.kv.manager.reservations import Reservation
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.tiers import KVTiers
from tests.unit.engine.engines import deliver, make_engine, make_request, write
from tests.unit.engine.fake_adapters import FakeAdapters, digest_of
from tests.unit.engine.fake_runner import EOS, reference, reference_labels
from tests.unit.engine.kv.tiers.fake_copier import FakeCopier

PARTIAL_PREFILLS: list[dict[str, Any]] = [
    {},
    {"max_partial_prefills": 1},
    {"max_partial_prefills": 2, "fair_partial_prefills": True},
    {"long_prefill_token_threshold": 6, "max_long_partial_prefills": 1},
]

LABELS = (5, 90, 17)

ADAPTERS: dict[str, tuple[int, ...]] = {"style": (), "sql": (), "echo": (1, 2)}
"""Contents of adapters, with the tokens that activate them."""

WINDOWS: list[list[int | None]] = [[None], [None, 3], [5], [2, None, 9]]
"""Windows of the groups of layers."""


def answer_to(request: Request, max_tokens: int) -> list[int]:
    return reference(request.prompt_keys, max_tokens, namespace=request.namespace)


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of who goes first, and who is preempted for whom."""
    policy = draw(st.sampled_from([Policy.PRIORITY, *Policy]))
    settings: dict[str, Any] = {
        "policy": policy,
        "forecast": draw(st.sampled_from(Forecast)),
        "aging_tokens": draw(st.sampled_from([1, 30, 80, 4_000_000])),
        "page_aligned_chunks": draw(st.booleans()),
    }
    if policy is Policy.PRIORITY:
        settings["priority_preemption_threshold"] = draw(st.sampled_from([0, 2, None]))
    if policy not in (Policy.LPM, Policy.DFS_WEIGHT):
        settings["tenant_quantum"] = draw(st.sampled_from([None, 5, 10_000]))
    return settings


@st.composite
def tier_limits(draw: st.DrawFn) -> TierLimits | None:
    if draw(st.booleans()):
        return None
    slots = draw(st.integers(1, 60))
    return TierLimits(
        host_slots=slots,
        disk_files=draw(st.sampled_from([0, 3, 100])),
        batch=draw(st.integers(1, 4)),
        loads=draw(st.integers(1, 4)),
        disk_pause_s=0.0,
    )


class EngineMachine(RuleBasedStateMachine):
    """Anything may happen to requests at any time; what they get is always the reference."""

    @initialize(
        page=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([4, 8, 20, None]),
        pages=st.integers(10, 18),
        overlap=st.booleans(),
        radix=st.booleans(),
        batching=st.sampled_from(Batching),
        order=orders(),
        looks=st.integers(0, 3),
        slots=st.sampled_from([2, 4]),
        limits=st.sampled_from(PARTIAL_PREFILLS),
        data=st.data(),
        tiers=tier_limits(),
        states=st.sampled_from([0, 2, 3, 9]),
        windows=st.sampled_from(WINDOWS),
        kept=st.sampled_from([None, 1, 2, 3]),
    )
    def start(
        self,
        page: int,
        chunk: int | None,
        pages: int,
        overlap: bool,
        radix: bool,
        batching: Batching,
        order: dict[str, Any],
        looks: int,
        slots: int,
        limits: dict[str, Any],
        data: st.DataObject,
        tiers: TierLimits | None,
        states: int,
        windows: list[int | None],
        kept: int | None,
    ) -> None:
        """`kept`: adapters in host memory, with one of which a step can compute; None: there are none."""
        if kept is not None:
            order = order | {"bank": FakeAdapters(), "lora": LoraConfig(max_loras=1, max_cpu_loras=kept)}
        self.open(
            groups=group_layers(windows, 64),
            page_size=page,
            chunk_budget=chunk,
            num_pages=pages * 4 // page * len(windows),
            overlap=overlap,
            radix_cache=radix,
            batching=batching,
            max_running_requests=slots,
            num_state_slots=states if windows == [None] else 0,
            **order,
            **limits,
        )
        runner: Any = self.engine.runner
        runner.looks = looks
        if tiers is not None and radix:
            self.copier = FakeCopier(runner.memory, tiers.host_slots)
            self.engine.kv.use_tiers(
                KVTiers(tiers, groups=runner.spec.kv_groups),
                self.copier,
                lambda: root_key("model"),
                runner.pages_of_slot,
            )
        self.prepare(data)

    def open(self, **settings: Any) -> None:
        # An example must be repeatable, and waits for tiers depend on the time.
        self.engine = make_engine(clock=partial(next, accumulate(repeat(0.001))), **settings)
        self.copier: Any = None
        self.next_id = 0
        self.has_adapters = "bank" in settings
        self.live: dict[int, Request] = {}
        self.reserved: list[tuple[Request, Reservation]] = []
        self.quarantined: list[Reservation] = []
        self.answered: list[list[int]] = []
        """Prompts and their answers, the last ones."""

    def prepare(self, data: st.DataObject) -> None:
        """Another machine's settings of the engine."""

    def new_request(self, prompt: list[int], max_tokens: int) -> Request:
        self.next_id += 1
        return make_request(self.next_id, prompt, max_tokens)

    def adapt(self, request: Request, content: str) -> Request:
        """Have it computed with an adapter, which comes if it is not here."""
        if not (content and self.has_adapters):
            return request
        digest, invocation = digest_of(content), ADAPTERS[content]
        start = last_invocation(request.prompt, invocation) if invocation else None
        if start is not None:
            keys = token_array(list(request.prompt))
            keys[start] = activation_key(digest, keys[start])
            request.adapter_start, request.prompt_keys = start, keys
        elif invocation:
            return request  # of the base model
        else:
            request.namespace = namespace_of(adapter=digest)
        request.adapter, request.adapter_digest = content, digest
        self.engine.adapters.expect(digest)
        return request

    prompts = st.lists(st.integers(0, 2), min_size=1, max_size=25)

    adapters = st.sampled_from(["", *ADAPTERS])

    arrivals = st.lists(
        st.tuples(
            prompts,
            st.integers(1, 12),
            st.integers(0, 5),
            st.sampled_from(["", "a", "b"]),
            adapters,
        ),
        min_size=1,
        max_size=4,
    )

    @rule(arrivals=arrivals)
    def submit(self, arrivals: list[tuple[list[int], int, int, str, str]]) -> None:
        for arrival in arrivals:
            self.send(*arrival)

    def send(
        self, prompt: list[int], max_tokens: int, priority: int = 0, tenant: str = "", adapter: str = ""
    ) -> None:
        if len(prompt) + max_tokens > self.engine.max_tokens:
            return
        request = self.adapt(self.new_request(prompt, max_tokens), adapter)
        request.priority, request.tenant = priority, tenant
        self.engine.submit(request)
        self.live[request.id] = request

    @rule(asked=st.lists(st.tuples(prompts, st.integers(0, 5)), min_size=1, max_size=4), adapter=adapters)
    def read(self, asked: list[tuple[list[int], int]], adapter: str) -> None:
        """Requests for log-probabilities of labels after a prompt, and for no token."""
        for prompt, priority in asked:
            if len(prompt) < self.engine.max_tokens:
                request = self.adapt(self.new_request(prompt, 0), adapter)
                request.read, request.priority = Read(LABELS), priority
                self.engine.submit(request)
                self.live[request.id] = request

    @precondition(lambda self: self.answered)
    @rule(data=st.data(), cut=st.integers(0, 3), tail=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def go_on(self, data: st.DataObject, cut: int, tail: list[int]) -> None:
        """The next turn of a conversation, or another one that branches just before its end."""
        known = data.draw(st.sampled_from(self.answered))
        self.send([*known[: len(known) - cut], *tail], data.draw(st.integers(1, 4)))

    @rule(prompt=prompts, max_tokens=st.integers(2, 12), adapter=adapters)
    def reserve(self, prompt: list[int], max_tokens: int, adapter: str) -> None:
        request = self.adapt(self.new_request(prompt, max_tokens), adapter)
        if answer_to(request, 1) == [EOS]:
            return
        if (reservation := self.engine.reserve(request)) is not None:
            self.reserved.append((request, reservation))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        request, reservation = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        deliver(self.engine, request, reservation)
        self.live[request.id] = request

    @precondition(lambda self: self.reserved)
    @rule(quarantine=st.booleans(), verified=st.integers(0, 4))
    def give_up(self, quarantine: bool, verified: int) -> None:
        """Its first pages may have arrived."""
        request, reservation = self.reserved.pop()
        write(self.engine, request, reservation)
        if quarantine:
            self.engine.kv.quarantine(reservation)
            self.quarantined.append(reservation)
        else:
            self.engine.kv.free_reservation(reservation, min(verified, len(reservation.incoming)))

    @precondition(lambda self: self.quarantined)
    @rule(verified=st.integers(0, 4))
    def drained(self, verified: int) -> None:
        reservation = self.quarantined.pop()
        self.engine.kv.free_reservation(reservation, min(verified, len(reservation.incoming)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        assert self.engine.abort(request.id)

    @precondition(lambda self: self.copier is not None)
    @rule(disk=st.booleans(), most=st.integers(1, 8))
    def copy(self, disk: bool, most: int) -> None:
        self.copier.work(disk=disk, most=most)

    @precondition(lambda self: self.copier is not None)
    @rule()
    def poll_tiers(self) -> None:
        self.engine.poll_tiers()
        self.engine.check_pages()

    @precondition(lambda self: self.copier is not None)
    @rule(full=st.booleans())
    def fill_the_disk(self, full: bool) -> None:
        self.copier.disk_full = full

    @precondition(lambda self: self.copier is not None)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip a bit in host memory or in a file, or lose the file."""
        if self.copier.slots and data.draw(st.booleans()):
            page = self.copier.slots[data.draw(st.sampled_from(sorted(self.copier.slots)))]
            page[data.draw(st.integers(0, len(page) - 1))] ^= 1 << data.draw(st.integers(0, 30))
        elif self.copier.files:
            key = data.draw(st.sampled_from(sorted(self.copier.files)))
            if data.draw(st.booleans()):
                del self.copier.files[key]
            else:
                self.copier.files[key][1][0] ^= 1

    @precondition(lambda self: self.has_adapters)
    @rule(content=st.sampled_from([*ADAPTERS]))
    def load(self, content: str) -> None:
        """For the requests that wait for it, or for those to come. Without room, those end."""
        adapters = self.engine.adapters
        try:
            adapters.add(adapters.read(content, Path(content)))
        except AdapterRefused:
            self.lose(content)

    @precondition(lambda self: self.has_adapters)
    @rule(content=st.sampled_from([*ADAPTERS]))
    def lose(self, content: str) -> None:
        """It does not come."""
        digest = digest_of(content)
        if self.engine.adapters.give_up(digest):
            self.reserved = [kept for kept in self.reserved if not self.is_lost(*kept, digest)]
            for request in [one for one in self.live.values() if one.adapter_digest == digest]:
                del self.live[request.id]
                assert self.engine.abort(request.id)

    def is_lost(self, request: Request, reservation: Reservation, digest: bytes) -> bool:
        if request.adapter_digest == digest:
            self.engine.kv.free_reservation(reservation, 0)
        return request.adapter_digest == digest

    @precondition(lambda self: self.has_adapters)
    @rule(content=st.sampled_from([*ADAPTERS]))
    def unload(self, content: str) -> None:
        adapters, digest = self.engine.adapters, digest_of(content)
        used = any(request.adapter_digest == digest for request in self.live.values())
        try:
            adapters.unload(digest)
        except AdapterRefused:
            return
        assert not used, "requests use it"

    @rule()
    def proceed(self) -> None:
        self.engine.proceed()

    @rule(steps=st.integers(1, 6), block=st.booleans())
    def step(self, steps: int, block: bool = True) -> None:
        for _ in range(steps):
            output = self.engine.step(block=block)
            counts, kinds = self.engine.check_pages(), self.engine.pages_by_kind()
            assert sum(kind.held for kind in kinds) == counts.held
            assert sum(kind.cached for kind in kinds) == counts.cached
            assert not output.failed
            found = {request.id: numbers for request, numbers in output.outputs}
            for request in output.read:
                assert self.live.pop(request.id) is request
                assert found[request.id] == reference_labels(request.prompt_keys, LABELS, request.namespace)
            for out in output.tokens:
                if out.finish is not None:
                    request = self.live.pop(out.request.id)
                    assert request.output == answer_to(request, request.sampling.max_tokens)
                    self.answered = [[*request.prompt, *request.output], *self.answered][:4]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.reserved:
            self.give_up(quarantine=True, verified=0)
        while self.quarantined:
            self.drained(verified=0)
        for _ in range(5000):
            if not self.engine.has_work:
                break
            for content in ADAPTERS if self.has_adapters else ():
                if any(request.adapter_digest == digest_of(content) for request in self.live.values()):
                    self.load(content)
            if self.copier is not None:
                self.copier.work(disk=False)
                self.copier.work(disk=True)
            self.step(1)
        assert not self.live, "a request was forgotten"
        self.engine.poll_tiers()
        if self.copier is not None:
            self.copier.work(disk=False)
            self.engine.poll_tiers()
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total
        if self.engine.kv.states.used:
            slots = self.engine.kv.states.pool.counts()
            assert slots.free + slots.cached == slots.total
        assert not self.engine.scheduler._prompts.in_flight


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
