"""Link check: before the frontends open, each prefill worker hands off a prompt to a decode worker.

It fails the start of a cluster whose workers cannot reach each other's memory, measures the KV bandwidth, and
opens connections before the first request.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from router.dispatch.failures import AttemptFailed
from router.dispatch.sequence import SequenceRequest, SequenceState
from router.dispatch.waterfall import Waterfall, busy_seconds
from router.errors import RouterError
from router.probes.worker_probe import MakeAttempt
from router.workers.registry import Registry
from router.workers.session import WorkerSession, request_pages
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
class Link:
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


async def check_links(registry: Registry, make_attempt: MakeAttempt, *, timeout_s: float) -> list[Link]:
    """Check one link per prefill worker, concurrently. Raises LinkBroken.

    `timeout_s` is for each prompt.
    """
    prefills, decodes = registry.ready(ROLE_PREFILL), registry.ready(ROLE_DECODE)
    pairs = [(prefill, decodes[i % len(decodes)]) for i, prefill in enumerate(prefills)]
    return await asyncio.gather(*(_measure(make_attempt, *pair, timeout_s) for pair in pairs))


async def _measure(
    make_attempt: MakeAttempt, prefill: WorkerSession, decode: WorkerSession, timeout_s: float
) -> Link:
    def pick(role: worker_pb2.Role) -> WorkerSession:
        return prefill if role == ROLE_PREFILL else decode

    async def transfer(prompt: list[int]) -> list[router_pb2.TimingSpan]:
        sequence = SequenceState(SequenceRequest(prompt, _SAMPLING), Waterfall(time.monotonic()))
        attempt = make_attempt(sequence, pick)
        async with asyncio.timeout(timeout_s):
            await attempt.run()
        return list(sequence.waterfall.timings(time.monotonic()).pushes)

    try:
        # Different from the first token on, so that nothing of the second prompt is cached.
        await transfer([1] * _SHORT)
        pushes = await transfer([2] * _longest_prompt(prefill.info, decode.info))
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except (AttemptFailed, RouterError) as error:
        reason = str(error)
    else:
        num_bytes = sum(push.bytes for push in pushes)
        transport = prefill.info.transport
        seconds = busy_seconds((push.begin_s, push.end_s) for push in pushes)
        return Link(
            prefill.worker_id,
            decode.worker_id,
            transport,
            num_bytes,
            seconds,
            between_gpus=_are_gpus_of_one_machine(prefill.info, decode.info),
        )
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
