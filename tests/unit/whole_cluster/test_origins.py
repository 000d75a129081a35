"""Equal tokens with different origins share no page anywhere, and equal origins share all.

`MUTANTS` lists what has to go by the origin. With each of them made blind to it, the property must fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import block_hash, block_key
from decode_worker.pulled_prefixes import PulledPrefixes
from engine.core.request import Request
from engine.executor.draft_model import DraftModel
from engine.executor.head_drafts import HeadDrafts
from engine.kv.cache.roots import Roots
from engine.kv.manager.arriving_prefixes import ArrivingPrefixes
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.page_tiers import PageTiers
from engine.kv.manager.peer_prefixes import PeerPrefixes
from engine.sched.drafts.speculator import Speculator
from engine.sched.prefixes_in_flight import PrefixesInFlight
from engine.sched.queue.prefix_ranker import PrefixRanker
from prefill_worker.shared_prefixes import SharedPrefixes
from router.dispatch.attempts.pull import Pull
from router.dispatch.kv_events import feed
from router.dispatch.sequence import SequenceState
from rpc.baton.v1 import worker_pb2
from tests.unit.whole_cluster.origin_places import PLACES, ask, shared
from tests.unit.whole_cluster.questions import ADAPTERS, Question
from worker import job_starter, request_handler
from worker.session import convert
from worker.session.jobs import Job

Place = Callable[[Question, Question], int]

PROMPTS = st.builds(
    lambda pages, rest: [token for page in pages for token in page] + rest,
    st.lists(st.sampled_from([[0] * 4, [1] * 4, [1, 0, 0, 1]]), min_size=1, max_size=4),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
ORIGINS = st.tuples(
    st.sampled_from([b"", b"red", b"blue"]), st.sampled_from(["", "a", "b"]), st.sampled_from(["", *ADAPTERS])
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Question, Question]:
    """Mostly of one prompt."""
    prompt = draw(PROMPTS)
    other = draw(st.one_of(st.just(prompt), st.just(prompt), PROMPTS))
    return ask(prompt, *draw(ORIGINS)), ask(other, *draw(ORIGINS))


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@settings(max_examples=30, deadline=None)
@given(pair=pairs())
def test_each_place_shares_what_has_the_same_origin_and_nothing_else(
    place: Place, pair: tuple[Question, Question]
) -> None:
    assert place(*pair) == shared(*pair)


# ------------------------------------------------------------------------------ mutants


def of_message(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    adapter = ("adapter", "adapter_digest", "adapter_start")
    for name in ("namespace", "keys", "prompt_keys", "cache_salt", *adapter):
        if name in message.DESCRIPTOR.fields_by_name:
            copy.ClearField(name)
    return copy


def requests_in(value: Any) -> list[Request]:
    """`value`, or the request that it is about, or all of a list."""
    if isinstance(value, list):
        return [request for each in value for request in requests_in(each)]
    found = getattr(getattr(value, "job", value), "request", value)
    return [found] if isinstance(found, Request) else []


@contextmanager
def blind(value: Any) -> Iterator[Any]:
    """`value`, whose requests have no origin meanwhile."""
    if isinstance(value, worker_pb2.Work | worker_pb2.Share):
        yield of_message(value)
    elif isinstance(value, SequenceState):
        prototype, value.prototype = value.prototype, of_message(value.prototype)
        yield value
        value.prototype = prototype
    else:
        origins = [(request, request.namespace, request.prompt_keys) for request in requests_in(value)]
        for request, _, _ in origins:
            request.namespace, request.prompt_keys = b"", request.prompt
        yield value
        for request, namespace, keys in origins:
            request.namespace, request.prompt_keys = namespace, keys


def ignoring(function: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(*args: Any, **more: Any) -> Any:
        with ExitStack() as stack:
            return function(*[stack.enter_context(blind(arg)) for arg in args], **more)

    return mutant


MUTANTS: Final[list[tuple[Any, str]]] = [
    # The pool.
    (KVManager, "_begin"),
    (KVManager, "cached_tokens"),
    (KVManager, "catch_up"),
    (KVManager, "_store_pages"),
    (KVManager, "forget"),
    (PrefixesInFlight, "_page_key"),
    (PrefixesInFlight, "_same_prefix"),
    (PrefixRanker, "_look_up"),
    (PrefixRanker, "_search"),
    # Tiers, and other workers.
    (PageTiers, "_missing"),
    (PageTiers, "_keys"),
    (ArrivingPrefixes, "begin"),
    (ArrivingPrefixes, "insert"),
    (ArrivingPrefixes, "keep_verified"),
    (PeerPrefixes, "_first_lacking"),
    (PeerPrefixes, "share"),
    (PulledPrefixes, "_reserve"),
    (SharedPrefixes, "_send"),
    (Job, "digest"),
    (job_starter, "request_from_proto"),
    (request_handler, "prompt_from_proto"),
    # The router.
    (SequenceState, "blocks"),
    (SequenceState, "work"),
    (Pull, "share"),
    (feed, "named_by"),
    # Drafts.
    (DraftModel, "_begun"),
    (HeadDrafts, "_mark"),
    (Speculator, "_answers_of"),
]

TEXT = [1, 0, 0, 1] + [0] * 4 + [1] * 4 + [0, 1]
PAIRS: Final = [
    (ask(TEXT, *first), ask(TEXT, *second))
    for first in ((b"", ""), (b"red", "a"))
    for second in ((b"", ""), (b"", "a"), (b"red", "a"), (b"red", "b"), (b"blue", "a"), (b"blue", ""))
]


def holds() -> bool:
    """Whether the property holds, for a few pairs."""
    try:
        return all(place(*pair) == shared(*pair) for place in PLACES for pair in PAIRS)
    except AssertionError:
        return False


def test_the_property_holds_for_the_pairs_of_the_mutants() -> None:
    assert holds()


@pytest.mark.parametrize(("owner", "name"), MUTANTS, ids=lambda part: getattr(part, "__name__", part))
def test_a_place_that_ignores_the_origin_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, ignoring(getattr(owner, name)))
    assert not holds()


@pytest.mark.parametrize("name", ["of", "root_hash", "namespace_key"])
def test_a_namespace_that_a_root_or_a_seed_ignores_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In every module that has imported it."""
    for owner in (Roots, block_hash, block_key):
        if (function := getattr(owner, name, None)) is not None:
            mutant = lambda first, _, function=function: function(first, b"")  # noqa: E731
            monkeypatch.setattr(owner, name, mutant)
            for module in list(sys.modules.values()):
                if getattr(module, name, None) is function and owner is not Roots:
                    monkeypatch.setattr(module, name, mutant)
    assert not holds()


@pytest.mark.parametrize("name", ["namespace", "prompt_keys"])
def test_a_part_of_the_origin_that_is_lost_on_the_way_to_the_worker_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delitem(convert._OF_WORK, name)
    assert not holds()
