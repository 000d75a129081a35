"""`Prefill batch` and `Decode batch` lines of a worker's log, in SGLang's format.

One line for every step in which a prompt is computed, be it its last token only, and one per
`decode_interval` steps of decodes.
"""

from __future__ import annotations

import logging

from common.log_format import data
from engine.core.events import Occupancy, StepOutput

log = logging.getLogger(__name__)


class BatchLog:
    """Logs steps. Used by the engine thread only."""

    def __init__(self, decode_interval: int, page_size: int, pace: PaceLog | None = None) -> None:
        """`decode_interval`: decode steps between two lines; 0: no batch lines."""
        self._pace = pace
        self._interval = decode_interval
        self._page_size = page_size
        self._decode_steps = 0
        self._generated = 0
        self._since: float | None = None
        """When the first step counted in `_generated` began."""

    def on_step(self, output: StepOutput, occupancy: Occupancy, began: float, ended: float) -> None:
        """A step; its tokens are those of the step before it where the engine overlaps."""
        if self._pace is not None and occupancy.paced_tokens is not None and output.has_both:
            self._pace.on_step(occupancy.paced_tokens)
        if not self._interval:
            return
        if self._since is None:
            self._since = began
        self._generated += len(output.tokens)
        if output.num_prompts or output.num_single:
            self._log_prefill(output, occupancy)
        elif output.num_tokens:
            self._decode_steps += 1
        if self._decode_steps >= self._interval:
            self._log_decode(occupancy, ended - self._since)
            self._decode_steps = self._generated = 0
            self._since = ended

    def rest(self) -> None:
        """The engine is idle: idle time does not count for the throughput."""
        self._since = None
        self._generated = 0

    def _log_prefill(self, output: StepOutput, occupancy: Occupancy) -> None:
        cached = sum(request.num_cached or 0 for request in output.started)
        new_seqs = output.num_prompts + output.num_single
        new_tokens = output.prompt_tokens + output.num_single
        running = occupancy.running - new_seqs
        log.info(
            "Prefill batch. #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f,"
            " #running-req: %d, #queue-req: %d",
            new_seqs,
            new_tokens,
            cached,
            occupancy.usage,
            running,
            occupancy.waiting,
            extra=data(
                event="prefill_batch",
                new_seqs=new_seqs,
                new_tokens=new_tokens,
                cached_tokens=cached,
                decodes=output.num_tokens - new_tokens,
                token_usage=round(occupancy.usage, 4),
                running=running,
                queued=occupancy.waiting,
            ),
        )

    def _log_decode(self, occupancy: Occupancy, seconds: float) -> None:
        throughput = self._generated / max(seconds, 1e-6)
        tokens = occupancy.used_pages * self._page_size
        log.info(
            "Decode batch. #running-req: %d, #token: %d, token usage: %.2f, gen throughput (token/s): %.2f,"
            " #queue-req: %d",
            occupancy.running,
            tokens,
            occupancy.usage,
            throughput,
            occupancy.waiting,
            extra=data(
                event="decode_batch",
                running=occupancy.running,
                tokens=tokens,
                token_usage=round(occupancy.usage, 4),
                gen_throughput=round(throughput, 2),
                queued=occupancy.waiting,
            ),
        )


class PaceLog:
    """Logs a line whenever the limit has halved or doubled since the last one."""

    def __init__(self, chunk: int, itl_target_s: float) -> None:
        self._chunk = chunk
        self._target_ms = itl_target_s * 1000
        self._logged = chunk

    def on_step(self, paced: int) -> None:
        """`paced`: prefill tokens allowed in a step beside decodes."""
        grown_back = paced == self._chunk != self._logged
        if self._logged / 2 < paced < self._logged * 2 and not grown_back:
            return
        self._logged = paced
        log.info(
            "ITL target %g ms: prefill chunks beside decodes have up to %d of %d tokens",
            self._target_ms,
            paced,
            self._chunk,
            extra=data(event="itl_target", chunk=paced, chunked_prefill_size=self._chunk),
        )
