"""What a router and the others agree on about weights and pauses, and that this router goes by it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from router.dispatch.agreement import AGREED_S, Agreement, Shared
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.routing.selector import FIRST_VERSION
from router.dispatch.weights.weights_state import Seen, WeightsState, copied
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import Unavailable
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

_Change = Callable[[WeightsState], WeightsState | None]


class AgreedWeights:
    def __init__(
        self,
        registry: Registry,
        dispatcher: ClusterDispatcher,
        abort_all: Callable[[], None],
        shared: Shared[WeightsState, Seen],
    ) -> None:
        self.state = WeightsState()
        """What this router goes by."""
        self.known: Final[dict[str, worker_pb2.ServedWeights]] = {}
        """All that requests were computed with, by tag."""
        self._registry = registry
        self._dispatcher = dispatcher
        self._abort_all = abort_all
        self._agreement: Final = Agreement(
            registry, shared, lambda: self.state, self._go_by, lambda: Seen(self.state.revision)
        )
        self.look: Final = self._agreement.look
        self.leave: Final = self._agreement.leave
        self.take_over: Final = self._agreement.publish
        """`publish` of a change that ends the update of a router that has ended."""

    def of_tag(self, tag: str) -> worker_pb2.ServedWeights:
        """Weights by the tag of the update; its digest is empty if the workers do not tell theirs."""
        return self.known.get(tag) or worker_pb2.ServedWeights(tag=tag)

    def note_first(self, session: WorkerSession) -> None:
        """Keep the digest of the weights of the start."""
        if not session.info.served.tag:
            self.known[""] = worker_pb2.ServedWeights(digest=session.info.weights)

    async def publish(
        self, change: Callable[[WeightsState], WeightsState | None], within_s: float = AGREED_S
    ) -> None:
        """Raises InvalidRequest while another router updates the weights, and Unavailable."""

        def checked(state: WeightsState) -> WeightsState | None:
            state.check_free(self._registry.name)
            return change(state)

        await self._agreement.publish(checked, within_s)

    async def _go_by(self, state: WeightsState) -> None:
        names = {one.tag: version_of(one) for one in (state.served, state.coming) if one is not None}
        self._dispatcher.serve({tag: names[tag] for tag in state.tags})
        self.known.update(
            {one.tag: one for one in (state.served, state.coming) if one is not None and one.digest}
        )
        if state.pause is None:
            self._dispatcher.resume()
        elif state.pause is not self._dispatcher.gate.mode:
            await self._dispatcher.pause(state.pause, self._abort_all)
        self.state = state
        await self._registry.reconsider()

    async def show(self, coming: worker_pb2.ServedWeights, tags: tuple[str, ...]) -> None:
        """Have all routers know which weights requests are to have; those that are late go by the old ones,
        which is slower, and not wrong."""
        try:
            await self.publish(
                lambda state: (
                    None
                    if (state.coming, state.tags) == (coming, tags)
                    else state.next(coming=copied(coming), tags=tags)
                )
            )
        except Unavailable as error:
            _log.warning("%s", error)

    async def end(self, served: worker_pb2.ServedWeights) -> None:
        """No update goes on; all workers that get requests have these weights."""
        try:
            await self.publish(lambda state: state.ended(copied(served)))
        except Unavailable as error:
            _log.warning("%s", error)


def version_of(served: worker_pb2.ServedWeights) -> str:
    """The name that clients know."""
    return served.version or FIRST_VERSION
