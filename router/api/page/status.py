"""The state of the whole service as JSON, for the live page and `router top`.

Numbers only: no text of any request, no client, no address.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from router.api.generation.served_model import ServedModel
from router.dispatch.admission.prefill_queue import PrefillQueue
from router.dispatch.metrics.recent import EndedRequest, HandoffTotals, QuantileWindow, Recent, SharedPause
from router.dispatch.weights.agreed_weights import version_of
from router.dispatch.workers.member import Member
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from rpc.as_json import as_json
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_FRESH_S: Final = 0.5
_PATIENCE_S: Final = 1.0
_SAMPLES: Final = 6


@dataclass(slots=True)
class WorkerFigures:
    """The latest answers of one incarnation of a worker, with their times."""

    epoch: int
    samples: deque[tuple[float, worker_pb2.WorkerStats]] = field(
        default_factory=lambda: deque(maxlen=_SAMPLES)
    )

    @property
    def latest(self) -> worker_pb2.WorkerStats:
        return self.samples[-1][1]

    def rate(self, counter: str) -> float | None:
        """The rate of a field of WorkerStats per second; None until there are two answers."""
        if len(self.samples) < 2:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return float(getattr(last, counter) - getattr(first, counter)) / (ended - began)


class WorkerStatsReader:
    """Reads the statistics of workers. Answers are cached for half a second, for any number of readers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._figures: dict[str, WorkerFigures] = {}
        self._read_at = -_FRESH_S
        self._reading = asyncio.Lock()

    async def read(self) -> dict[str, WorkerFigures]:
        """Figures by worker id. A worker that does not answer within a second keeps its latest figures."""
        async with self._reading:
            if time.monotonic() - self._read_at >= _FRESH_S:
                found = await asyncio.gather(*map(self._ask, self._registry.sessions()))
                self._figures = {name: figures for name, figures in found if figures is not None}
                self._read_at = time.monotonic()
            return self._figures

    async def _ask(self, session: WorkerSession) -> tuple[str, WorkerFigures | None]:
        figures = self._figures.get(session.worker_id)
        if figures is not None and figures.epoch != session.info.epoch:
            figures = None
        try:
            stats = await session.stats(_PATIENCE_S)
        except RpcError:
            return session.worker_id, figures  # the worker's state shows the failure
        figures = figures or WorkerFigures(session.info.epoch)
        figures.samples.append((time.monotonic(), stats))
        return session.worker_id, figures


Status = dict[str, Any]

_LEVELS: Final = (0.5, 0.9, 0.99)
_PAGE_STATES: Final = ("held", "cached", "in_flight", "quarantined", "leaving", "free")


class StatusReader:
    def __init__(
        self,
        model: ServedModel,
        registry: Registry,
        recent: Recent,
        prefill_queue: PrefillQueue,
        running: Callable[[], int],
    ) -> None:
        """`running()`: number of sequences in progress."""
        self._model = model
        self._registry = registry
        self._recent = recent
        self._prefill_queue = prefill_queue
        self._running = running
        self._stats = WorkerStatsReader(registry)

    async def read(self) -> Status:
        """Rates are per second, over the last 5 s; percentiles over the last minute; durations in seconds."""
        figures = await self._stats.read()
        workers = [_worker(m, figures.get(m.handle.worker_id)) for m in self._registry.members()]
        recent, now = self._recent, time.monotonic()
        return {
            "time": time.time(),
            "uptime_s": now - recent.since,
            "model": {
                "name": self._model.name,
                "mode": self._model.mode,
                "max_model_len": self._model.max_model_len,
            },
            "requests": {
                "running": self._running(),
                "waiting": sum(worker.get("waiting", 0) for worker in workers),
                "held_back": self._prefill_queue.held_back,
                "queued_tokens": self._prefill_queue.tokens,
                "predicted_wait_s": self._prefill_queue.wait_s(),
                "ended_per_s": recent.ended_requests.rate(now),
            },
            "tokens": {
                "prompt_per_s": recent.prompt_tokens.rate(now),
                "output_per_s": recent.output_tokens.rate(now),
                "prompt_history": recent.prompt_tokens.history(now),
                "output_history": recent.output_tokens.history(now),
            },
            "ttft_s": _quantiles(recent.ttft, now),
            "read_s": _quantiles(recent.read, now),
            "itl_s": _quantiles(recent.itl, now),
            "e2e_s": _quantiles(recent.e2e, now),
            "workers": workers,
            "links": [_link(*pair, handoffs, now) for pair, handoffs in recent.links.items()],
            "pauses": [_pause(shared, now) for shared in reversed(recent.pauses)],
            "ended": [_ended(request, now) for request in reversed(recent.requests)],
        }


def _quantiles(window: QuantileWindow, now: float) -> dict[str, float] | None:
    values = window.quantiles(_LEVELS, now)
    if values is None:
        return None
    return {f"p{level * 100:g}": value for level, value in zip(_LEVELS, values, strict=True)} | {
        "count": window.count(now)
    }


def _worker(member: Member, figures: WorkerFigures | None) -> dict[str, Any]:
    session = member.session
    described: dict[str, Any] = {
        "id": member.handle.worker_id,
        "role": member.role_name,
        "state": member.state.value,
        "device": session.info.device if session else None,
        "dtype": session.info.dtype if session else None,
        "requests": session.load.requests if session else 0,
        "weight_version": version_of(session.info.served) if session else None,
    }
    if figures is not None and session is not None:
        stats = figures.latest
        described |= {
            "running": stats.load.running,
            "waiting": stats.load.waiting,
            "waiting_tokens": stats.load.waiting_tokens,
            "pages": {state: getattr(stats.pages, state) for state in _PAGE_STATES},
            "prompt_tokens_per_s": figures.rate("prompt_tokens"),
            "output_tokens_per_s": figures.rate("generated_tokens"),
            "steps_per_s": figures.rate("steps"),
            "preemptions": stats.preemptions,
            "tiers": [_tier(tier, stats.tiers.page_bytes) for tier in stats.tiers.tiers],
            "max_loras": session.info.max_loras,
            "adapters": [adapter_figures(use) for use in stats.load.adapters],
        }
    return described


def _tier(tier: worker_pb2.KVTier, page_bytes: int) -> dict[str, Any]:
    return {
        "name": tier.name,
        "bytes": tier.pages * page_bytes,
        "capacity_bytes": tier.capacity * page_bytes,
        "promoted_bytes": tier.promoted * page_bytes,
    }


def adapter_figures(use: worker_pb2.AdapterUse) -> dict[str, Any]:
    return {
        "name": use.name,
        "on_device": use.on_device,
        "running": use.running,
        "waiting": use.waiting,
        "bytes": use.host_bytes,
    }


def _link(prefill_worker: str, decode_worker: str, handoffs: HandoffTotals, now: float) -> dict[str, Any]:
    return {
        "from": prefill_worker,
        "to": decode_worker,
        "handoffs": handoffs.count,
        "bytes": handoffs.bytes,
        "bytes_per_s": handoffs.rate.rate(now),
    }


def _pause(shared: SharedPause, now: float) -> dict[str, Any]:
    pause = shared.first
    return {
        "number": shared.number,
        "ended_s_ago": now - pause.at,
        "seconds": shared.seconds,
        "answers": shared.answers,
        "worker": pause.worker,
        "cause": pause.cause,
        "parts": dict(pause.parts),
    }


def _ended(request: EndedRequest, now: float) -> dict[str, Any]:
    return {
        "id": request.id,
        "outcome": request.outcome,
        "ended_s_ago": now - request.ended,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "timings": as_json(request.timings),
    }
