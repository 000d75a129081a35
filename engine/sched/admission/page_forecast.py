"""How many pages must stay available to running requests when another one is admitted.

Admitting too many requests means preempting some later and computing their prompts again; admitting too few
leaves memory idle. Requests grow together, but each gives back all its pages when it ends, so the peak
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.config import Forecast, SchedulerConfig
from engine.core.request import Request
from engine.kv.manager.kv_manager import KVManager
from engine.sched.output_lengths import OutputLengths, allowed_tokens

_CLIP_TOKENS: Final = 4096
"""SGLang counts at most this many output tokens per request."""
_RETRACT_STEPS: Final = 20
_DECAY_STEPS: Final = 600


class AdmissionForecast(Protocol):
    """Forecast of the pages that running requests will take and give back, for the admissions of one plan."""

    def headroom(self, request: Request, alone: int) -> int:
        """Pages to leave available if `request` is admitted and holds `alone` pages by itself."""

    def admitted(self, request: Request) -> None:
        """Count `request` as running."""


class _NewTokenRatio:
    """SGLang's forecast: the share of the allowed output tokens that running requests will still produce.

    The ratio starts at 0.7 times the conservativeness and decays to a seventh of that over 600 decode steps.
    When a request is retracted, it is set to the share produced so far, plus 20 tokens per request.
    """

    def __init__(self, conservativeness: float) -> None:
        self._first = min(0.7 * conservativeness, 1.0)
        self._least = min(0.14 * self._first, 1.0)
        self.value = self._first

    def decoded(self) -> None:
        """A step decoded, and nothing was retracted."""
        self.value = max(self.value - (self._first - self._least) / _DECAY_STEPS, self._least)

    def retracted(self, decoding: Sequence[Request]) -> None:
        produced = sum(len(request.output) for request in decoding) + _RETRACT_STEPS * len(decoding)
        allowed = sum(request.sampling.max_tokens for request in decoding) + 1
        self.value = min(1.0, produced / allowed)


class Forecaster:
    """Makes the configured kind of forecast for each plan."""

    def __init__(self, config: SchedulerConfig, kv: KVManager, lengths: OutputLengths) -> None:
        self._config = config
        self._kv = kv
        self._lengths = lengths
        self._ratio = _NewTokenRatio(config.schedule_conservativeness)

    def forecast(self, running: Sequence[Request]) -> AdmissionForecast:
        """Requests whose KV is being received count as well: they run soon."""
        kv = self._kv
        active = [*running, *(reservation.request for reservation in kv.reservations.active.values())]
        match self._config.forecast:
            case Forecast.PEAK:
                return _Peak(kv, self._lengths, self._config.schedule_conservativeness, active)
            case Forecast.NEW_TOKEN_RATIO:
                return _Ratio(kv, self._ratio.value, active)
            case Forecast.NONE:
                return _Nothing()

    def decoded(self) -> None:
        """A step decodes, and nothing was preempted for it."""
        self._ratio.decoded()

    def retracted(self, running: Sequence[Request]) -> None:
        """A request was preempted; these are still running."""
        self._ratio.retracted([request for request in running if request.output])


class _Peak:
    """Costs O(running) at the first call, and again whenever a prefix gets its second reader."""

    def __init__(self, kv: KVManager, lengths: OutputLengths, factor: float, running: list[Request]) -> None:
        self._kv = kv
        self._lengths = lengths
        self._factor = factor
        self._running = running
        self._alone: NDArray[np.int64] | None = None
        self._growth = np.zeros(0, dtype=np.int64)

    def headroom(self, request: Request, alone: int) -> int:
        """0 if nothing runs: a single request may take all pages."""
        if not self._running:
            return 0
        if not len(self._growth):
            self._growth = self._growth_of(self._running)
        growth = self._growth_of([request])
        most = int(self._growth.sum() + growth[0])
        if most + alone <= self._kv.num_available:
            return most  # enough even if no request gives pages back before the others end
        if self._alone is None or self._kv.locks.is_second_reader(request):
            self._alone = np.array([self._kv.pages_alone(r) for r in self._running], dtype=np.int64)
        return peak_growth(np.append(self._alone, alone), np.append(self._growth, growth))

    def admitted(self, request: Request) -> None:
        self._running.append(request)
        if self._kv.locks.is_second_reader(request):
            self._alone = None  # another request now holds fewer pages of its own
        elif self._alone is not None:
            self._alone = np.append(self._alone, self._kv.pages_alone(request))
        if len(self._growth):
            self._growth = np.append(self._growth, self._growth_of([request]))

    def _growth_of(self, requests: Sequence[Request]) -> NDArray[np.int64]:
        """Pages that requests are expected to take in addition."""
        tokens = self._lengths.remaining(requests)
        if self._factor != 1.0:
            tokens = np.minimum((tokens * self._factor).astype(np.int64), allowed_tokens(requests))
        held = np.array([request.num_tokens for request in requests]) if self._kv.needs.windowed else tokens
        return self._kv.needs.growth(held, tokens)


class _Ratio:
    def __init__(self, kv: KVManager, ratio: float, running: list[Request]) -> None:
        self._needs = kv.needs
        self._is_idle = not running
        self._tokens = ratio * sum(_still_allowed(request) for request in running)

    def headroom(self, request: Request, alone: int) -> int:
        """0 if nothing runs: a single request may take all pages."""
        if self._is_idle:
            return 0
        tokens = int(self._tokens + _still_allowed(request))
        return self._needs.blocks(tokens) * max(1, self._needs.num_full)  # windows hardly grow

    def admitted(self, request: Request) -> None:
        self._is_idle = False
        self._tokens += _still_allowed(request)


class _Nothing:
    def headroom(self, request: Request, alone: int) -> int:
        return 0

    def admitted(self, request: Request) -> None:
        pass


def _still_allowed(request: Request) -> int:
    return min(max(request.sampling.max_tokens - len(request.output), 0), _CLIP_TOKENS)


def peak_growth(held: NDArray[np.int64], growth: NDArray[np.int64]) -> int:
    """The most pages that requests need at any moment until all have ended, beyond those they hold.

    Request i holds `held[i]` pages, takes `growth[i]` more, at the same pace as all others, and then gives
    all of them back. O(n log n).
    """
    if len(growth) == 0:
        return 0
    order = np.argsort(growth, kind="stable")
    more, pages = growth[order], held[order]
    # Just before the k-th request ends, it and all later ones have grown by as much; earlier ones are gone.
    alive = len(more) - np.arange(len(more))
    given_back = np.cumsum(pages) - pages
    return max(0, int((alive * more - given_back).max()))
