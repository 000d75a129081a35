"""Cancels a request's work when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed the connection."""


@asynccontextmanager
async def ends_with_client(receive: Receive) -> AsyncGenerator[None, None]:
    """Context that is cancelled, and raises ClientGone, when the client disconnects.

    The request's body must have been read, so that the next message can only be the disconnect.
    """
    work = asyncio.current_task()
    assert work is not None, "only a task can be cancelled"
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        work.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or work.uncancel() > 0:
            raise
        raise ClientGone from None
    finally:
        watching.cancel()
