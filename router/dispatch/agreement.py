"""How the routers of a model agree on something: a state with revisions, and a view of each router.

A change is the state with the next revision. It is complete when every router has confirmed it by its view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from router.dispatch.workers.registry import Registry
from router.errors import Unavailable

_SOON_S: Final = 0.05
"""Interval of looking for what a call waits for."""
AGREED_S: Final = 15.0
"""For the other routers to confirm a change."""


class Revised(Protocol):
    @property
    def revision(self) -> int: ...


StateT = TypeVar("StateT", bound=Revised)
ViewT = TypeVar("ViewT", bound=Revised)


class Shared(Protocol[StateT, ViewT]):
    """Kept where all routers reach it. Methods raise what that place raises."""

    async def read(self, since: StateT) -> StateT:
        """The latest state, which is `since` if there is none newer."""
        ...

    async def write(self, state: StateT) -> bool:
        """False if another router has written this revision: read, and try again."""
        ...

    async def views(self) -> Mapping[str, ViewT]:
        """Views by the name of the router, also of routers that have ended."""
        ...

    async def keep_view(self, router: str, view: ViewT) -> None:
        """In place of the router's earlier one."""
        ...

    async def forget_view(self, router: str) -> None: ...


class Agreement(Generic[StateT, ViewT]):
    """One router's part."""

    def __init__(
        self,
        registry: Registry,
        shared: Shared[StateT, ViewT],
        state: Callable[[], StateT],
        adopt: Callable[[StateT], Awaitable[object]],
        view: Callable[[], ViewT],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state`: what this router goes by. `adopt`: go by a later one. `view`: what it tells the others."""
        self._registry = registry
        self._shared = shared
        self._state, self._adopt, self._view = state, adopt, view
        self._clock = clock
        self._adopting = asyncio.Lock()
        self._told: ViewT | None = None

    async def publish(self, change: Callable[[StateT], StateT | None], within_s: float = AGREED_S) -> None:
        """Make a change that every router goes by. `change` returns None if it is done already.

        Raises what `change` raises, and Unavailable if a router does not confirm it in time.
        """
        while (wanted := change(self._state())) is not None:
            if await self._shared.write(wanted):
                await self._go_by(wanted)
                break
            await self.look()
        await self.tell()
        ends = self._clock() + within_s
        while late := await self._late_routers():
            if self._clock() >= ends:
                raise Unavailable(
                    f"other routers do not confirm the change: {', '.join(late)}", retry_after_s=1.0
                )
            await asyncio.sleep(_SOON_S)

    async def look(self) -> None:
        """Go by the latest state, and tell the other routers."""
        await self._go_by(await self._shared.read(self._state()))
        await self.tell()

    async def tell(self) -> None:
        if (view := self._view()) != self._told:
            await self._shared.keep_view(self._registry.name, view)
            self._told = view

    async def leave(self) -> None:
        """Forget this router's view, as it ends."""
        await self._shared.forget_view(self._registry.name)

    async def others(self) -> list[ViewT] | None:
        """Views of the other routers; None if one has not told any."""
        names = self._registry.other_routers()
        views = await self._shared.views() if names else {}
        return [views[name] for name in names] if all(name in views for name in names) else None

    async def _go_by(self, state: StateT) -> None:
        async with self._adopting:
            if state.revision > self._state().revision:
                await self._adopt(state)

    async def _late_routers(self) -> list[str]:
        names = self._registry.other_routers()
        views = await self._shared.views() if names else {}
        revision = self._state().revision
        return [name for name in names if name not in views or views[name].revision < revision]
