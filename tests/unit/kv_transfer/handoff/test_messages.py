"""Messages survive their own encoding, and nothing else survives decoding."""

from __future__ import annotations

import contextlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer import HandoffState, Peer
from kv_transfer.errors import BadMessage
from kv_transfer.handoff.messages import (
    Confirm,
    Digests,
    Drain,
    Finish,
    HandoffMessage,
    Push,
    Revoke,
    decode,
    encode,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
PEERS = st.builds(Peer, TEXT, U64, st.binary(max_size=600), U64, U64, U64, U32, TEXT)
BODIES = st.one_of(
    st.builds(Push, U32, U32, U32),
    st.builds(Digests, U32, st.lists(U64, max_size=50).map(tuple), U64),
    st.builds(
        Finish,
        st.builds(HandoffState, st.lists(U32, max_size=8).map(tuple), U32, U64, U64),
        st.floats(allow_nan=False),
        st.lists(U64, max_size=50).map(tuple),
    ),
    st.just(Confirm()),
    st.builds(Revoke, PEERS, TEXT),
    st.builds(Drain, TEXT),
)
MESSAGES = st.builds(HandoffMessage, U64, U64, U64, U64, BODIES)


@given(MESSAGES)
def test_a_message_is_decoded_to_what_was_encoded(message: HandoffMessage) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


@given(MESSAGES, st.integers(0, 10**6), st.integers(1, 255))
def test_a_message_with_any_byte_changed_is_refused(
    message: HandoffMessage, position: int, change: int
) -> None:
    data = bytearray(encode(message))
    data[position % len(data)] ^= change
    with pytest.raises(BadMessage):
        decode(bytes(data))


@given(MESSAGES, st.integers(0, 10**6))
def test_a_message_that_was_cut_short_is_refused(message: HandoffMessage, length: int) -> None:
    data = encode(message)
    with pytest.raises(BadMessage):
        decode(data[: length % len(data)])


@given(MESSAGES, st.binary(min_size=1, max_size=20))
def test_a_message_with_trailing_bytes_is_refused(message: HandoffMessage, more: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(encode(message) + more)


@given(MESSAGES, st.binary(max_size=40), st.integers(0, 10**6))
def test_wrong_lengths_are_refused_even_with_a_valid_checksum(
    message: HandoffMessage, noise: bytes, position: int
) -> None:
    payload = bytearray(encode(message)[:-8])
    body = 37  # behind the header
    start = body + position % max(1, len(payload) - body)
    payload[start : start + len(noise)] = noise
    data = bytes(payload) + xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little")
    with contextlib.suppress(BadMessage):
        assert encode(decode(data)) == data


def sealed(payload: bytes) -> bytes:
    """With the checksum that belongs to it."""
    return payload + xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little")


@given(MESSAGES, st.binary(min_size=4, max_size=4).filter(lambda magic: magic != b"BKV4"))
def test_a_message_of_another_protocol_version_is_refused_with_a_valid_checksum(
    message: HandoffMessage, magic: bytes
) -> None:
    with pytest.raises(BadMessage, match="protocol version"):
        decode(sealed(magic + encode(message)[4:-8]))


@given(st.integers(0, 36))
def test_a_message_shorter_than_its_header_is_refused_with_a_valid_checksum(length: int) -> None:
    header = encode(HandoffMessage(1, 2, 3, 4, Confirm()))[:37]
    with pytest.raises(BadMessage, match="protocol version"):
        decode(sealed(header[:length]))


def test_a_long_reason_is_cut_to_fit() -> None:
    decoded = decode(encode(HandoffMessage(1, 2, 3, 4, Drain("x" * 100_000))))
    assert isinstance(decoded.body, Drain)
    assert decoded.body.reason == "x" * 1024
