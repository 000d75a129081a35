"""Steady load of answers that are known beforehand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import TracebackType

from tests.faults.support.clients import Answered, Client, GrpcClient, check
from tests.faults.support.small_model import Question, SmallModel

_PATIENCE_S = 120.0
_AFTER_REFUSAL_S = 0.25
_SOON_S = 2.0
"""A client may be some way behind what was sent to it when a worker dies."""


class Answers:
    """What is right, as tokens for gRPC clients and as text for HTTP clients."""

    def __init__(self, small: SmallModel, ids: Mapping[Question, Sequence[int]]) -> None:
        self.questions = list(ids)
        self._ids = ids
        self._texts = {question: small.text(answer) for question, answer in ids.items()}

    def for_client(self, client: Client) -> Mapping[Question, Sequence[int] | str]:
        return self._ids if isinstance(client, GrpcClient) else self._texts


def questions(small: SmallModel, count: int) -> list[Question]:
    """Greedy and seeded, from three chunks of prompt up, answers that take a second or more."""
    return [
        small.question(seed, length=300 + 40 * seed, max_tokens=500, sampled=seed % 2 == 1)
        for seed in range(count)
    ]


async def learn(small: SmallModel, client: GrpcClient, questions: Sequence[Question]) -> Answers:
    """The service's own while nothing is wrong; greedy ones are what transformers would say, or it raises."""

    async def answer(question: Question) -> list[int]:
        return [token async for ids in client.ask(question) for token in ids]

    answers = await asyncio.gather(*(answer(question) for question in questions))
    known = dict(zip(questions, answers, strict=True))
    assert all(small.says(question, ids) for question, ids in known.items() if question.seed is None)
    return Answers(small, known)


class Load:
    """Each client asks one question after the other until the block is left; then they finish.

    A wrong answer, to any of them at any time, is an AssertionError when the block is left.
    """

    def __init__(self, clients: Sequence[Client], answers: Answers) -> None:
        self._clients = clients
        self._answers = answers
        self._stories: list[list[Answered]] = [[] for _ in clients]
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(len(self._clients))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*self._tasks)

    def stop(self) -> None:
        """No client asks again."""
        self._stopping = True

    async def ask_no_more(self) -> None:
        """As `stop`; returns when the last request of every client has been accepted."""
        self.stop()
        async with asyncio.timeout(_PATIENCE_S):
            clients = zip(self._tasks, self._stories, strict=True)
            waiting = [(task, stories[-1]) for task, stories in clients if stories]
            while any(not (task.done() or last.times or last.refusal) for task, last in waiting):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @property
    def stories(self) -> list[Answered]:
        return [story for stories in self._stories for story in stories]

    @property
    def refusals(self) -> list[str]:
        return [story.refusal for story in self.stories if story.refusal is not None]

    async def everybody_streams(self, since: float = 0.0) -> None:
        """Until every client has had a token after `since`. Raises what a client raised, or TimeoutError."""
        async with asyncio.timeout(_PATIENCE_S):
            while any(_latest(stories) <= since for stories in self._stories):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    def interruption(self, at: float) -> float:
        """The longest that a stream which ran at that moment stood still from then on, in seconds.

        A stop that begins some time later is not counted: it has another cause.
        """
        running = [s.times for s in self.stories if s.times and s.times[0] <= at < s.times[-1]]
        gaps = (gap for times in running for gap in pairwise(times) if at < gap[1] and gap[0] < at + _SOON_S)
        return max((after - max(before, at) for before, after in gaps), default=0.0)

    async def _run(self, number: int) -> None:
        client = self._clients[number]
        right = self._answers.for_client(client)
        for question in itertools.cycle(self._answers.questions[number:] + self._answers.questions[:number]):
            if self._stopping:
                return
            story = Answered(question)
            self._stories[number].append(story)
            await check(client, question, right, story)
            if story.refusal is not None:
                await asyncio.sleep(_AFTER_REFUSAL_S)


def _latest(stories: Sequence[Answered]) -> float:
    return max((story.times[-1] for story in stories if story.times), default=0.0)
