"""The catalogue of a model's adapters in Ray, where all routers of a cluster find it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from router.cluster.record import ClusterRecord
from router.dispatch.adapters.sharing import (
    catalogue_from_json,
    catalogue_to_json,
    view_from_json,
    view_to_json,
)
from router.dispatch.adapters.table import Catalogue, RouterView

Ask: TypeAlias = Callable[[Callable[[ClusterRecord], object]], Awaitable[object]]


class AdapterRecord:
    """Implements `SharedCatalogue`. Methods raise what Ray raises."""

    def __init__(self, ask: Ask) -> None:
        """`ask` calls a function with the record where it may block."""
        self._ask = ask

    async def read(self, since: Catalogue) -> Catalogue:
        found: list[Catalogue] = []

        def use(record: ClusterRecord) -> None:
            if (latest := record.adapters(since.revision)) is not None:
                found.append(catalogue_from_json(*latest))

        await self._ask(use)
        return found[0] if found else since

    async def write(self, catalogue: Catalogue) -> bool:
        text = catalogue_to_json(catalogue)
        return bool(await self._ask(lambda record: record.keep_adapters(catalogue.revision, text)))

    async def views(self) -> Mapping[str, RouterView]:
        found: dict[str, RouterView] = {}

        def use(record: ClusterRecord) -> None:
            for router, text in record.adapter_views().items():
                found[router] = view_from_json(text)

        await self._ask(use)
        return found

    async def keep_view(self, router: str, view: RouterView) -> None:
        text = view_to_json(view)
        await self._ask(lambda record: record.keep_adapter_view(router, text))

    async def forget_view(self, router: str) -> None:
        await self._ask(lambda record: record.forget_adapter_view(router))
