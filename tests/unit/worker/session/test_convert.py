"""Messages and dataclasses say the same."""

from __future__ import annotations

import math
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from engine.core.media import MediaArray, MediaItem
from engine.core.read import Read
from engine.core.retention import RetainedPrefix, Retention
from engine.core.sampling_params import SamplingParams, TokenLogprobs
from engine.grammar.grammar import Grammar, GrammarKind
from kv_transfer import Peer, Ticket
from router.api.generation.params.constraint import Constraint
from router.api.generation.params.sampling_options import SamplingOptions
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.convert import (
    logprobs_to_proto,
    peer_from_proto,
    peer_to_proto,
    request_from_proto,
    sampling_from_proto,
    ticket_from_proto,
    ticket_to_proto,
)
from worker.session.jobs import Job
from worker.session.router_session import RouterSession

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
peers = st.builds(
    Peer,
    name=st.text(max_size=20),
    epoch=u64,
    metadata=st.binary(max_size=20),
    base_address=u64,
    page_bytes=u64,
    num_pages=u64,
    device_index=st.integers(0, 15),
    layout_hash=st.text("0123456789abcdef", max_size=32),
)
tickets = st.builds(
    Ticket,
    handoff_id=u64,
    receiver=peers,
    epoch=u64,
    layout_hash=st.text(max_size=8),
    pages=st.lists(u32, max_size=8).map(tuple),
    first_token=u32,
    num_tokens=u32,
    timeout_s=st.floats(0, 1e6),
    secret=u64,
)


@given(tickets)
def test_a_ticket_is_decoded_to_what_was_encoded(ticket: Ticket) -> None:
    wire = ticket_to_proto(ticket).SerializeToString()
    assert ticket_from_proto(worker_pb2.Ticket.FromString(wire)) == ticket


@given(peers)
def test_a_peer_is_decoded_to_what_was_encoded(peer: Peer) -> None:
    assert peer_from_proto(worker_pb2.Peer.FromString(peer_to_proto(peer).SerializeToString())) == peer


def test_no_logprobs_is_not_zero_logprobs() -> None:
    assert sampling_from_proto(sampling_pb2.SamplingParams()).logprobs is None
    assert sampling_from_proto(sampling_pb2.SamplingParams(logprobs=0)).logprobs == 0


def test_every_parameter_that_the_router_sends_reaches_the_engine() -> None:
    sent = SamplingOptions(
        min_tokens=3,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        min_p=0.5,
        repetition_penalty=0.5,
        logprobs=0,
        logprob_token_ids=(8, 6),
        prompt_logprobs=3,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        stop_token_ids=(5, 4),
        ignore_eos=True,
        logit_bias={9: 0.5, 2: -1.0},
        constraint=Constraint(Grammar(GrammarKind.REGEX, "a+"), "regex"),
    ).resolve(prompt_tokens=1, room=7, seed=-1, vocab_size=100)
    expected = SamplingParams(
        max_tokens=7,
        min_tokens=3,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        min_p=0.5,
        seed=(1 << 64) - 1,
        repetition_penalty=0.5,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        logprobs=0,
        logprob_token_ids=(8, 6),
        prompt_logprobs=3,
        stop_token_ids=(5, 4),
        ignore_eos=True,
        logit_bias=((2, -1.0), (9, 0.5)),
        grammar=Grammar(GrammarKind.REGEX, "a+"),
    )
    default = SamplingParams(max_tokens=16)
    assert all(getattr(expected, f.name) != getattr(default, f.name) for f in fields(SamplingParams))
    assert sampling_from_proto(sent) == expected


def test_a_request_includes_the_tokens_of_earlier_attempts() -> None:
    work = worker_pb2.Work(
        request_id=7, prompt=[1, 2], output=[3], sampling=sampling_pb2.SamplingParams(max_tokens=9)
    )
    request = request_from_proto(work, arrival=1.5)
    assert (request.id, list(request.prompt), request.output) == (7, [1, 2], [3])
    assert (request.num_computed, request.num_tokens, request.arrival) == (0, 3, 1.5)


_OF_OTHERS = {
    "request_id",
    "name",
    "traceparent",
    "timeout_s",
    "cache_salt",
    "weights",
    "adapter_path",
    "adapter_sources",
    "weight_versions",
}
"""Fields of Work that a job or the router has, and the request has not, or under another name."""


def test_every_field_of_work_reaches_the_request_under_its_name() -> None:
    work = worker_pb2.Work(
        request_id=7,
        prompt=[1, 2],
        output=[3],
        sampling=sampling_pb2.SamplingParams(max_tokens=3),
        num_scored=1,
        priority=-2,
        tenant="key-1",
        ttft_deadline_s=2.5,
        timeout_s=9.0,
        name="cmpl-1",
        traceparent="00-1",
        namespace=b"salted",
        prompt_keys=[1, -9],
        cache_salt="salt",
        adapter="sql",
        adapter_digest=b"0123456789abcdef",
        adapter_path="/sql",
        adapter_sources=[worker_pb2.AdapterSource(address="127.0.0.1:9")],
        adapter_start=1,
        weights="tag",
        weight_versions=True,
        routed_experts=True,
        num_routed=1,
        read=worker_pb2.Read(label_ids=[5, 9]),
        retention=worker_pb2.Retention(
            key="chat", seconds=5.0, prefixes=[worker_pb2.RetainedPrefix(tokens=1, seconds=2.0)]
        ),
        media=[
            worker_pb2.MediaItem(
                digest=b"red",
                offset=1,
                length=1,
                grid=[1, 2, 4],
                arrays=[worker_pb2.MediaArray(name="pixels", dtype="uint8", shape=[1, 2], data=b"ab")],
            )
        ],
    )
    assert {field.name for field, _ in work.ListFields()} == set(work.DESCRIPTOR.fields_by_name)
    request, blank = request_from_proto(work, 0.0), request_from_proto(worker_pb2.Work(prompt=[1]), 0.0)
    for name in set(work.DESCRIPTOR.fields_by_name) - _OF_OTHERS:
        assert getattr(request, name) != getattr(blank, name), name
    assert request.retention == Retention("chat", 5.0, (RetainedPrefix(1, 2.0),))
    assert request.read == Read((5, 9))
    pixels = MediaArray("pixels", "uint8", (1, 2), b"ab")
    assert request.media == (MediaItem(b"red", 1, 1, (1, 2, 4), (pixels,)),)
    assert (request.priority, request.tenant, request.ttft_deadline_s) == (-2, "key-1", 2.5)
    assert (request.namespace, list(request.keys(0, 3))) == (b"salted", [1, -9, 3])
    assert (blank.retention, blank.ttft_deadline_s) == (None, math.inf)


def test_logprobs_keep_the_order_of_the_most_likely() -> None:
    message = logprobs_to_proto(TokenLogprobs(-0.5, 2, ((9, -0.25), (4, -0.5))))
    assert (message.logprob, message.rank) == (-0.5, 2)
    assert (list(message.top_ids), list(message.top_logprobs)) == ([9, 4], [-0.25, -0.5])


def test_different_requests_have_different_digests() -> None:
    def digest(prompt: list[int], **sampling: object) -> int:
        message = sampling_pb2.SamplingParams(max_tokens=4, **sampling)  # type: ignore[arg-type]
        work = worker_pb2.Work(request_id=1, prompt=prompt, sampling=message)
        request, session = request_from_proto(work, 0.0), RouterSession.__new__(RouterSession)
        return Job(request, session, 0.0, math.inf, message).digest(len(prompt))

    assert digest([1, 2, 3]) == digest([1, 2, 3])
    assert digest([1, 2, 3]) != digest([1, 2, 4])
    assert digest([1, 2, 3]) != digest([1, 2, 3], temperature=0.5)
    assert digest([1, 2, 3], seed=1) != digest([1, 2, 3], seed=2)
