"""Baton as an application of Ray Serve: `import_path: baton.ray:build_openai_app`.

Each replica of the deployment `LLMServer` is a router: Serve's proxies bring it requests, and all replicas
share the workers of the application, which are actors of the same Ray. The arguments are those of
`ray.serve.llm.build_openai_app`, or the settings of a `--config` file. It needs the extra `serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import ray
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp

from baton.serve_settings import settings_of
from router.api.access import Access
from router.api.http.asgi_streams import AsgiStreams
from router.cluster.ray_connection import RayConnection
from router.command.progress import StartupDisplay
from router.command.startup import Start
from router.config.flags.command_line import configs_of

_REQUESTS: Final = 1_000_000
"""At a replica at once: Serve's default of 5 would hold requests back, which the router queues itself."""
_ENDS_S: Final = 150.0
"""For running answers to end when a replica does."""


class Router:
    """In a replica of Ray Serve. The workers outlive it, and the next replica finds them."""

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """`settings`: as in a `--config` file. Raises what a start of the router raises."""
        context = ray.get_runtime_context()
        cluster = f"serve.{serve.get_replica_context().app_name}"
        configs = configs_of({"cluster-name": cluster, **settings, "ray-address": context.gcs_address})
        access = Access.load(configs[0])
        from router.command.server import web_app

        async with AsyncExitStack() as stack:
            with StartupDisplay() as display:
                models = await Start(configs, RayConnection(configs), access, display, stack).models()
            self._app: ASGIApp = AsgiStreams(web_app(configs[0], models, access, stack))
            self._stack = stack.pop_all()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app

    async def __del__(self) -> None:
        """Called by Serve when the replica's requests have ended."""
        if hasattr(self, "_stack"):
            await self._stack.aclose()


LLMServer: Final = serve.deployment(
    name="LLMServer", max_ongoing_requests=_REQUESTS, graceful_shutdown_timeout_s=_ENDS_S
)(serve.ingress()(Router))


def build_openai_app(args: Mapping[str, Any]) -> Application:
    """An application that serves OpenAI's and Anthropic's APIs; for `serve.run` and `serveConfigV2`.

    Raises ValueError for arguments that are wrong.
    """
    return LLMServer.bind(settings_of(args))
