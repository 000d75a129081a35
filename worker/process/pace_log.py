"""Log lines when the ITL target makes prefill chunks smaller, or lets them grow again."""

from __future__ import annotations

import logging

from common.log_format import data

log = logging.getLogger(__name__)


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
