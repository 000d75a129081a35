"""When a prefill worker tells the sender which KV of a prompt is final."""

from __future__ import annotations

from typing import Any

import pytest

from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.engines import make_engine
from tests.unit.worker.handlers import handled
from worker.session.router_session import RouterSession

PROMPT = list(range(5, 18))
TURN = [*PROMPT, *range(30, 60)]


class Prefills:
    def __init__(self, overlap: bool) -> None:
        self.engine = make_engine(overlap=overlap)
        self.worker = handled(self.engine)
        self.said: list[tuple[int, int, bool]] = []
        """Request, tokens that are final, and whether a step in flight writes some of their pages."""
        self.worker.transfer.sender.computed.side_effect = self._computed

    def _computed(self, handoff_id: int, pages: list[int], num_tokens: int) -> None:
        written: set[int] = set()
        if (launched := self.engine._in_flight.launched) is not None:
            for chunk in launched.plan.chunks:
                written.update(chunk.request.pages[chunk.start // 4 : -(-chunk.end // 4)])
        self.said.append((handoff_id, num_tokens, not written.isdisjoint(pages[: num_tokens // 4])))

    def submit(self, request_id: int, prompt: list[int], *, handoff: bool = True) -> None:
        sampling = sampling_pb2.SamplingParams(
            max_tokens=4, top_p=1.0, repetition_penalty=1.0, ignore_eos=True
        )
        work = worker_pb2.Work(request_id=request_id, prompt=prompt, sampling=sampling)
        command = worker_pb2.Command(submit=worker_pb2.Submit(work=work, handoff=handoff))
        session: Any = RouterSession.__new__(RouterSession)
        self.worker.handler.handle(session, command, 0.0)

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.worker.handler.tick(self.worker.clock.now)
            self.worker.handler.on_step(self.engine.step())


@pytest.fixture(params=[False, True], ids=["", "overlap"])
def prefills(request: pytest.FixtureRequest) -> Prefills:
    return Prefills(overlap=request.param)


def test_a_cached_prefix_is_final_before_the_first_chunk_is(prefills: Prefills) -> None:
    prefills.submit(1, PROMPT, handoff=False)
    prefills.step(8)
    prefills.submit(2, TURN)
    prefills.step(4)
    assert [(tokens, written) for _, tokens, written in prefills.said] == [
        (12, False),
        (28, False),
        (43, False),
    ]


def test_a_prefix_that_a_step_in_flight_computes_is_final_after_it(prefills: Prefills) -> None:
    """The second request begins while the first one's chunks, or another's decodes, are on the device."""
    prefills.submit(1, PROMPT, handoff=False)
    prefills.step()
    prefills.submit(2, TURN)
    prefills.submit(3, [*PROMPT, 1, 2, 3])
    prefills.step(8)
    assert {request for request, _, _ in prefills.said} == {2, 3}
    assert [tokens for request, tokens, _ in prefills.said if request == 2][-1] == 43
    assert not any(written for _, _, written in prefills.said)


def test_of_a_request_that_was_aborted_nothing_is_said(prefills: Prefills) -> None:
    prefills.submit(1, PROMPT, handoff=False)
    prefills.step()
    prefills.submit(2, TURN)
    prefills.worker.handler.handle(
        RouterSession.__new__(RouterSession), worker_pb2.Command(abort=worker_pb2.Abort(request_id=2)), 0.0
    )
    prefills.step(4)
    assert prefills.said == []
