"""What the routers of a cluster agree on, in Ray, where all of them find it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from router.cluster.record import Agreed, ClusterRecord
from router.dispatch.adapters import sharing
from router.dispatch.adapters.table import Catalogue, RouterView
from router.dispatch.agreement import Revised
from router.dispatch.weights import weights_state
from router.dispatch.weights.weights_state import Seen, WeightsState

Ask: TypeAlias = Callable[[Callable[[ClusterRecord], object]], Awaitable[object]]

StateT = TypeVar("StateT", bound=Revised)
ViewT = TypeVar("ViewT", bound=Revised)


@dataclass(frozen=True, slots=True)
class SharedRecord(Generic[StateT, ViewT]):
    """Implements `router.dispatch.agreement.Shared`. Methods raise what Ray raises."""

    ask: Ask
    """Calls a function with the record where it may block."""
    kind: Agreed
    state_to_json: Callable[[StateT], bytes]
    state_from_json: Callable[[int, bytes], StateT]
    view_to_json: Callable[[ViewT], bytes]
    view_from_json: Callable[[bytes], ViewT]

    async def read(self, since: StateT) -> StateT:
        found: list[StateT] = []

        def use(record: ClusterRecord) -> None:
            if (latest := record.agreed(self.kind, since.revision)) is not None:
                found.append(self.state_from_json(*latest))

        await self.ask(use)
        return found[0] if found else since

    async def write(self, state: StateT) -> bool:
        text = self.state_to_json(state)
        return bool(await self.ask(lambda record: record.keep_agreed(self.kind, state.revision, text)))

    async def views(self) -> Mapping[str, ViewT]:
        found: dict[str, ViewT] = {}

        def use(record: ClusterRecord) -> None:
            for router, text in record.views(self.kind).items():
                found[router] = self.view_from_json(text)

        await self.ask(use)
        return found

    async def keep_view(self, router: str, view: ViewT) -> None:
        text = self.view_to_json(view)
        await self.ask(lambda record: record.keep_view(self.kind, router, text))

    async def forget_view(self, router: str) -> None:
        await self.ask(lambda record: record.forget_view(self.kind, router))


def adapter_record(ask: Ask) -> SharedRecord[Catalogue, RouterView]:
    """The adapters of a model."""
    return SharedRecord(
        ask,
        Agreed.ADAPTERS,
        sharing.catalogue_to_json,
        sharing.catalogue_from_json,
        sharing.view_to_json,
        sharing.view_from_json,
    )


def weights_record(ask: Ask) -> SharedRecord[WeightsState, Seen]:
    """The weights of a model."""
    return SharedRecord(
        ask,
        Agreed.WEIGHTS,
        weights_state.state_to_json,
        weights_state.state_from_json,
        weights_state.seen_to_json,
        weights_state.seen_from_json,
    )
