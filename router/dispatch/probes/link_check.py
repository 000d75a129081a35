"""Link check: before the frontends open, prompts are handed off over every link that requests may use.

It fails the start of a cluster whose workers cannot reach each other's memory, measures the KV bandwidth of
one link of each prefill worker, and opens all of them: connecting two transports and their first write take
50 to 120 ms (two processes of one machine), while both workers may have streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from router.dispatch.failures import AttemptFailed
from router.dispatch.probes.worker_probe import MakeAttempt
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall, busy_seconds
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.request_pages import request_pages
from router.dispatch.workers.session import WorkerSession
from router.errors import RouterError
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

_SHORT: Final = 8
"""Tokens of the first prompt, which establishes the connection."""
_LONGEST: Final = 2048
"""Most tokens of the second prompt, which is measured: some hundred megabytes of a large model's KV."""
_SAMPLING: Final = sampling_pb2.SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, seed=1)
"""A few tokens, so that the prefill worker's report arrives before the last one."""
_TELLING: Final = 64_000_000
"""Bytes. In a smaller transfer latency dominates, so its rate says nothing about the link."""
_PCIE_LEAST: Final = 20e9
"""Bytes per second: less than this between GPUs of one machine means that KV was staged in host memory."""


@dataclass(frozen=True, slots=True)
class CheckedLink:
    """Measured KV transfer between two workers."""

    prefill: str
    decode: str
    transport: str
    num_bytes: int
    seconds: float
    """Seconds with writes in progress; 0 if the prefill worker's report came after the last token."""
    between_gpus: bool = False
    """Whether both are GPUs of one machine."""

    @property
    def is_detour(self) -> bool:
        """Whether KV was staged in host memory although a direct path exists."""
        return (
            self.between_gpus and self.num_bytes >= _TELLING and self.num_bytes < _PCIE_LEAST * self.seconds
        )

    def __str__(self) -> str:
        way = f"{self.prefill} → {self.decode}"
        if not self.seconds:
            return f"{way}: KV arrives over {self.transport}; the rate was not measured"
        return (
            f"{way}: {self.num_bytes / 1e6:.1f} MB of KV over {self.transport} in "
            f"{self.seconds * 1e3:.1f} ms, {self.num_bytes / self.seconds / 1e9:.1f} GB/s"
            + ("; KV is staged in host memory: see `router doctor`" if self.is_detour else "")
        )


class LinkBroken(Exception):
    """KV cannot be transferred between two workers; the message names them and the reason."""


async def check_links(
    registry: Registry,
    make_attempt: MakeAttempt,
    able: Callable[[worker_pb2.Role], Sequence[WorkerSession]],
    *,
    timeout_s: float,
) -> list[CheckedLink]:
    """Measure one link per prefill worker, concurrently, and open the others. Raises LinkBroken.

    `able(role)`: workers that can compute this role's part of a sequence. `timeout_s` is for each prompt.
    """
    prefills, decodes = registry.ready(ROLE_PREFILL), registry.ready(ROLE_DECODE)
    measured = list(zip(prefills, cycle(decodes), strict=False))
    check = _LinkCheck(make_attempt, timeout_s)
    links = await asyncio.gather(*(check.measure(*pair) for pair in measured))
    all_pairs = ((one, other) for one in able(ROLE_PREFILL) for other in able(ROLE_DECODE))
    unused = [(one, other) for one, other in all_pairs if one is not other and (one, other) not in measured]
    await asyncio.gather(*(check.open(*pair) for pair in unused))
    return links


@dataclass(frozen=True, slots=True)
class _LinkCheck:
    make_attempt: MakeAttempt
    timeout_s: float

    async def measure(self, prefill: WorkerSession, decode: WorkerSession) -> CheckedLink:
        """Raises LinkBroken."""
        await self.open(prefill, decode)
        # Different from the first token on, so that nothing of it is cached.
        pushes = await self._transfer(prefill, decode, [2] * _longest_prompt(prefill.info, decode.info))
        return CheckedLink(
            prefill.worker_id,
            decode.worker_id,
            prefill.info.transport,
            sum(push.bytes for push in pushes),
            busy_seconds((push.begin_s, push.end_s) for push in pushes),
            between_gpus=_are_gpus_of_one_machine(prefill.info, decode.info),
        )

    async def open(self, prefill: WorkerSession, decode: WorkerSession) -> None:
        """Raises LinkBroken."""
        await self._transfer(prefill, decode, [1] * _SHORT)

    async def _transfer(
        self, prefill: WorkerSession, decode: WorkerSession, prompt: list[int]
    ) -> Sequence[router_pb2.TimingSpan]:
        def pick(role: worker_pb2.Role) -> WorkerSession:
            return prefill if role == ROLE_PREFILL else decode

        sequence = SequenceState(
            worker_pb2.Work(prompt=prompt, sampling=_SAMPLING), Waterfall(time.monotonic())
        )
        attempt = self.make_attempt(sequence, pick)
        try:
            async with asyncio.timeout(self.timeout_s):
                await attempt.run()
        except TimeoutError:
            reason = f"no answer within {self.timeout_s:g} s"
        except (AttemptFailed, RouterError) as error:
            reason = str(error)
        else:
            return sequence.waterfall.timings(time.monotonic()).pushes
        raise LinkBroken(
            f"KV cannot be transferred from {prefill.worker_id} to {decode.worker_id}: {reason}; "
            "run `router doctor` to find the cause"
        )


def _longest_prompt(*workers: worker_pb2.WorkerInfo) -> int:
    """Tokens that fit every worker, in one chunk."""
    longest = _LONGEST
    for info in workers:
        half = request_pages(info).largest_request(info.num_pages // 2, longest)
        longest = min(half, info.chunked_prefill_size or longest)
        longest = min(longest, info.max_model_len - _SAMPLING.max_tokens - 1)
    return max(longest, 1)


def _are_gpus_of_one_machine(*workers: worker_pb2.WorkerInfo) -> bool:
    hosts = {info.metrics_address.rpartition(":")[0] for info in workers}
    return len(hosts) == 1 and all(info.device.startswith("cuda") for info in workers)
