from __future__ import annotations

import asyncio

import pytest

from router.dispatch.token_stream import _PER_TURN, DeliveryQueue, Delta, TextEnded, TokenStream
from rpc.baton.v1.sampling_pb2 import FINISH_REASON_LENGTH, TokenLogprobs


class Reader:
    """Remembers what it was given."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self.deltas: list[Delta] = []
        self.stream = TokenStream(self.deliver)
        self.stream.queue = queue

    def deliver(self, delta: Delta) -> bool:
        self.deltas.append(delta)
        return False

    @property
    def tokens(self) -> list[list[int]]:
        return [delta.token_ids for delta in self.deltas]

    def arrive(self, token: int) -> None:
        self.stream.delta.token_ids.append(token)
        self.stream.delta.logprobs.append(TokenLogprobs(rank=token))
        self.stream.changed()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_with_time_to_spare_every_token_is_a_delta() -> None:
    reader = Reader(DeliveryQueue())
    for token in range(5):
        reader.arrive(token)
        await turns(2)
    assert reader.tokens == [[token] for token in range(5)]


async def test_tokens_that_wait_for_their_turn_are_merged_with_their_logprobs() -> None:
    """Every turn of the loop brings a token for each of more streams than a turn delivers."""
    queue, rounds = DeliveryQueue(), 12
    readers = [Reader(queue) for _ in range(4 * _PER_TURN)]
    for token in range(rounds):
        for reader in readers:
            reader.arrive(token)
        await turns(1)
    await turns(8)
    for reader in readers:
        assert [token for tokens in reader.tokens for token in tokens] == list(range(rounds))
        assert [entry.rank for delta in reader.deltas for entry in delta.logprobs] == list(range(rounds))
        assert len(reader.deltas) <= rounds / 3


async def test_delivered_tokens_are_counted_once_a_turn() -> None:
    sent: list[int] = []
    queue = DeliveryQueue(sent.append)
    for reader in (Reader(queue), Reader(queue)):
        reader.arrive(1)
        reader.arrive(2)
    await turns(2)
    assert sent == [4]


async def test_a_paused_reader_gets_everything_at_once_when_it_resumes() -> None:
    reader = Reader(DeliveryQueue())
    reader.arrive(0)
    reader.stream.pause()
    for token in range(1, 4):
        reader.arrive(token)
        await turns(2)
    assert not reader.deltas
    reader.stream.resume()
    await reader.stream.drained()
    assert reader.tokens == [[0, 1, 2, 3]]


async def test_draining_waits_for_a_finish_without_tokens_too() -> None:
    reader = Reader(DeliveryQueue())
    await reader.stream.drained()
    reader.stream.pause()
    reader.stream.delta.finish = FINISH_REASON_LENGTH
    reader.stream.changed()
    draining = asyncio.create_task(reader.stream.drained())
    await turns(3)
    assert not draining.done()
    reader.stream.resume()
    await draining
    assert [delta.finish for delta in reader.deltas] == [FINISH_REASON_LENGTH]


async def test_draining_gives_up_a_paused_reader_when_it_is_due() -> None:
    reader = Reader(DeliveryQueue())
    reader.stream.pause()
    reader.arrive(0)
    now = asyncio.get_running_loop().time()
    assert not await reader.stream.drained(now + 0.01)
    assert asyncio.get_running_loop().time() >= now + 0.01
    assert not reader.deltas


async def test_draining_waits_for_a_reader_that_is_not_paused_when_it_is_due_and_until_it_pauses() -> None:
    queue = DeliveryQueue()
    others = [Reader(queue) for _ in range(100)]
    for each in others:
        each.arrive(0)
    readers = [Reader(queue) for _ in range(2)]
    for each in readers:
        each.arrive(1)
    waits = [asyncio.create_task(each.stream.drained(0.0)) for each in readers]
    await turns(4)
    assert not any(wait.done() for wait in waits)
    readers[1].stream.pause()
    assert [await wait for wait in waits] == [True, False]
    assert [each.tokens for each in readers] == [[[1]], []]


@pytest.mark.parametrize("error", [None, ValueError("broken")])
async def test_a_reader_that_ends_or_fails_gets_nothing_more(error: Exception | None) -> None:
    calls = 0

    def deliver(delta: Delta) -> bool:
        nonlocal calls
        calls += 1
        if error is not None:
            raise error
        return True

    reader = Reader(DeliveryQueue())
    stream = TokenStream(deliver)
    stream.queue = reader.stream.queue
    stream.delta.token_ids.append(1)
    stream.changed()
    reader.arrive(7)
    with pytest.raises(TextEnded if error is None else ValueError):
        await stream.interrupt.wait(asyncio.Event().wait())
    stream.delta.token_ids.append(2)
    stream.changed()
    await turns(3)
    assert (calls, reader.tokens) == (1, [[7]])
