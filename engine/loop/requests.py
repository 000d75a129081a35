"""The requests of an engine, from their submission until their pages are released."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.config import EngineConfig
from engine.core.adapters import AdapterBank
from engine.core.events import StepOutput
from engine.core.request import Request
from engine.core.sampling_params import FinishReason
from engine.errors import EngineError, GrammarError, UnservableRequest, WeightsIncomplete
from engine.grammar.compiler import GrammarCompiler
from engine.kv.manager.kv_manager import KVManager
from engine.loop.adapters import Adapters
from engine.loop.hooks import Hooks
from engine.loop.in_flight import InFlight
from engine.media.support import check_images
from engine.model_config.served_model import ServableSpec
from engine.sched.scheduler import Scheduler


class Requests:
    def __init__(
        self,
        scheduler: Scheduler,
        kv: KVManager,
        grammars: GrammarCompiler,
        in_flight: InFlight,
        hooks: Hooks,
        clock: Callable[[], float],
        config: EngineConfig,
        bank: AdapterBank | None,
    ) -> None:
        self.live: dict[int, Request] = {}
        """All that have not ended, by id."""
        self.hooks = hooks
        self.adapters = Adapters(config.lora, bank, scheduler.adapters, self._users)
        self.incomplete: WeightsIncomplete | None = None
        """A failed refill, after which no new request is accepted."""
        self._kept: dict[int, Request] = {}
        """Ended, but a hook keeps their pages."""
        self._distrusted: set[int] = set()
        """Requests whose KV must not be reused, because their logits were not finite."""
        self._config = config
        self._scheduler = scheduler
        self._kv = kv
        self._grammars = grammars
        self._in_flight = in_flight
        self._clock = clock

    def owners(self) -> Iterator[Request]:
        """All that may have pages."""
        yield from self.live.values()
        yield from self._kept.values()

    def _users(self) -> Iterator[Request]:
        """All that compute tokens, or will when their KV is here."""
        yield from self.live.values()
        yield from (reservation.request for reservation in self._kv.reservations.active.values())

    def check_new(self, request: Request, model: ServableSpec) -> None:
        """Gives the request the matcher of its grammar, if it has none yet.

        Raises UnservableRequest, and WeightsIncomplete after a failed refill.
        """
        if self.incomplete is not None:
            raise self.incomplete
        if request.id in self.live or request.id in self._kept:
            raise UnservableRequest(f"request {request.id} is here already")
        request.check(model.vocab_size)
        if request.media:
            check_images(request, self._config, model)
        self.adapters.require(request)
        if request.sampling.grammar is not None and request.matcher is None:
            request.matcher = self._grammars.matcher(request.sampling.grammar)

    def end(self, request: Request, reason: FinishReason) -> None:
        del self.live[request.id]
        self._scheduler.remove(request, reason)
        if self.hooks.on_finished(request):
            self._kept[request.id] = request
        else:
            self._release(request)

    def fail(self, request: Request, error: EngineError, output: StepOutput) -> None:
        """Unless its grammar is at fault, its KV must not be reused, even if it has ended meanwhile."""
        if not isinstance(error, GrammarError):
            if request.finish is not None and request.id not in self._kept:
                self._kv.forget(request)
                return
            self._distrusted.add(request.id)
        elif request.sampling.grammar is not None:
            self._grammars.forget(request.sampling.grammar)
        if request.finish is None:
            output.failed.append((request, error))
            self.end(request, FinishReason.ABORT)

    def release_kept(self, request: Request) -> None:
        """Release pages that `Hooks.on_finished` kept."""
        self._release(self._kept.pop(request.id))

    def _release(self, request: Request) -> None:
        self._in_flight.note_late_writes(request)
        trusted = request.id not in self._distrusted
        self._distrusted.discard(request.id)
        if trusted and request.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self._kv.retain(request, self._clock())
        self._kv.release(request, keep=trusted)
