"""Admin API on loopback: list, drain and restart workers, change their number, stop the router.

Every local user may use it. Clients: `router workers`, `drain`, `restart`, `scale`, `stop` and others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.background import supervised
from router.api.http.middleware import RequireLocalName
from router.api.http.server import QuietServer, listen
from router.api.page.status import adapter_figures
from router.command.admin.caches import PLACES, manage_caches
from router.command.admin.drain import (
    CannotChangeRole,
    LastWorker,
    NoSuchWorker,
    NotBackInTime,
    OperationFailed,
    WorkerDrainer,
)
from router.command.admin.scaling import MAX_WORKERS, CannotScale, Scaling, Superseded
from router.dispatch.weights.agreed_weights import version_of
from router.dispatch.workers.member import Member
from router.dispatch.workers.registry import Registry
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from worker.config import WorkerRole

_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

LOOPBACK: Final = "127.0.0.1"
_ROLES: Final = {"prefill": ROLE_PREFILL, "decode": ROLE_DECODE}
_STATUS: Final = {
    NoSuchWorker: 404,
    LastWorker: 409,
    CannotChangeRole: 409,
    CannotScale: 409,
    Superseded: 409,
    OperationFailed: 502,
    NotBackInTime: 504,
}


@dataclass(frozen=True, slots=True)
class ManagedModel:
    """What the admin API reads and changes of a model."""

    registry: Registry
    drainer: WorkerDrainer
    scaling: Scaling | None = None
    """None: the number of workers cannot change."""
    explain: Callable[[str], Mapping[str, Any] | None] = lambda _: None
    drain_timeout_s: float = 30.0
    startup_timeout_s: float = 900.0


def admin_app(
    models: Mapping[str, ManagedModel],
    *,
    stop: Callable[[bool], None] = lambda _: None,
    num_siblings: int = 0,
) -> Starlette:
    """The admin API. With several models, requests for a worker or a role have the query parameter `model`.

    POST requests are answered when the operation is complete, except that to stop. `stop(workers)` begins the
    end, also of the `num_siblings` other front ends of this command.
    """
    operations = _Operations(models, stop, num_siblings)
    get: dict[str, _Endpoint] = {
        "/requests/{id:path}": operations.explain,
        "/workers": operations.workers,
        "/cache": operations.cache,
    }
    post: dict[str, _Endpoint] = {
        "/cache/clear": operations.clear_cache,
        "/scale/{role}": operations.scale,
        "/stop": operations.stop_router,
        "/workers/{name}/drain": operations.drain,
        "/workers/{name}/restart": operations.restart,
        "/workers/{name}/role": operations.assign_role,
    }
    return Starlette(
        routes=[
            Route(path, _finishing(endpoint), methods=[method])
            for method, endpoints in (("GET", get), ("POST", post))
            for path, endpoint in endpoints.items()
        ],
        exception_handlers={HTTPException: _refused},
        middleware=[Middleware(RequireLocalName)],
    )


@dataclass(frozen=True, slots=True)
class _Operations:
    """The endpoints, each with its query parameters. `force=1` overrides what an operation refuses to do."""

    models: Mapping[str, ManagedModel]
    stop: Callable[[bool], None]
    num_siblings: int

    async def explain(self, request: Request) -> Response:
        """A running or recent request, as `ManagedModel.explain` returns it."""
        for name, model in self.models.items():
            if (found := model.explain(request.path_params["id"])) is not None:
                return _json({"model": name, **found})
        raise HTTPException(404, "no running or recent request has this id; see --explain-requests")

    async def workers(self, request: Request) -> Response:
        """The workers of `model`, or of all models."""
        only = request.query_params.get("model")
        if only is not None:
            self._model(request)
        chosen = self.models if only is None else [only]
        return _json(
            [_described(name, member) for name in chosen for member in self.models[name].registry.members()]
        )

    async def drain(self, request: Request) -> Response:
        """`timeout`: seconds, by default --drain-timeout."""
        model = self._model(request)
        moved = await model.drainer.drain(
            request.path_params["name"], _timeout(request, model.drain_timeout_s), force=_forced(request)
        )
        return _json({"moved": moved})

    async def restart(self, request: Request) -> Response:
        """`timeout`: as for `drain`."""
        model = self._model(request)
        moved = await model.drainer.restart(
            request.path_params["name"],
            _timeout(request, model.drain_timeout_s),
            model.startup_timeout_s,
            force=_forced(request),
        )
        return _json({"moved": moved})

    async def assign_role(self, request: Request) -> Response:
        """`role`: prefill or decode."""
        asked = _ROLES.get(request.query_params.get("role", ""))
        if asked is None:
            raise HTTPException(400, f"role={request.query_params.get('role')}: use prefill or decode")
        drainer = self._model(request).drainer
        await drainer.assign(request.path_params["name"], asked, force=_forced(request))
        return _json({})

    async def scale(self, request: Request) -> Response:
        """`workers`: the number of workers of the role in the path, prefill or decode."""
        names = [role.value for role in WorkerRole]
        asked, text = request.path_params["role"], request.query_params.get("workers", "")
        model = self._model(request)
        if model.scaling is None or asked not in names:
            raise HTTPException(404, f"there is no role {asked}: use {' or '.join(names)}")
        if not text.isdecimal() or len(text) > len(str(MAX_WORKERS)):
            raise HTTPException(400, f"workers={text}: use 0 to {MAX_WORKERS}")
        scaled = await model.scaling.scale(WorkerRole(asked), int(text), model.startup_timeout_s)
        return _json({"workers": scaled})

    async def cache(self, request: Request) -> Response:
        """What the workers have cached, as `manage_caches` returns it. `worker`: only this one."""
        registry = self._model(request).registry
        return _json(await manage_caches(registry, request.query_params.get("worker")))

    async def clear_cache(self, request: Request) -> Response:
        """Answers with what is cached then.

        `place`: pool, host, disk, object; repeated; by default all. `key`: only what sessions of this key
        retain. `worker`: only this one.
        """
        query = request.query_params
        places = query.getlist("place") or PLACES
        if unknown := [place for place in places if place not in PLACES]:
            raise HTTPException(400, f"place={unknown[0]}: use {', '.join(PLACES)}")
        registry = self._model(request).registry
        return _json(await manage_caches(registry, query.get("worker"), places, query.get("key")))

    async def stop_router(self, request: Request) -> Response:
        """Drain and end this router; answered before it ends.

        `workers=1`: its workers too, unless other routers use them.
        """
        workers = request.query_params.get("workers") == "1"
        others = sorted({name for model in self.models.values() for name in model.registry.other_routers()})
        if workers and len(others) > self.num_siblings and not _forced(request):
            raise HTTPException(409, f"{', '.join(others)} uses these workers too; --force overrides this")
        self.stop(workers)
        return _json({"others": others})

    def _model(self, request: Request) -> ManagedModel:
        """The model that the request names; without a name the only one."""
        name = request.query_params.get("model")
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None or name not in self.models:
            which = "give a model" if name is None else f"there is no model {name}"
            raise HTTPException(404 if name else 400, f"{which}: {', '.join(self.models)}")
        return self.models[name]


class AdminServer:
    """Serves `app` on loopback only."""

    def __init__(self, app: Starlette, port: int) -> None:
        self._server = QuietServer(app)
        self._wanted_port = port
        self._serving: asyncio.Task[None] | None = None
        self.port = 0
        """The listening port, after `start`."""

    async def start(self) -> None:
        """Raises OSError when the port cannot be bound."""
        listener = listen(LOOPBACK, self._wanted_port)
        self.port = listener.getsockname()[1]
        self._serving = supervised(self._server.serve(sockets=[listener]), "admin-server")

    async def stop(self) -> None:
        """Stop serving; open requests get no response."""
        if self._serving is not None:
            self._server.force_exit = True
            self._server.leave()
            self._server.drop_connections()
            await self._serving


def _finishing(endpoint: _Endpoint) -> _Endpoint:
    """Finish the operation even if the client disconnects; errors become responses."""

    async def answer(request: Request) -> Response:
        if "origin" in request.headers:  # refuse browsers: web pages on this machine must not use the API
            raise HTTPException(403, "not for browsers")
        try:
            return await asyncio.shield(asyncio.ensure_future(endpoint(request)))
        except tuple(_STATUS) as error:
            raise HTTPException(_STATUS[type(error)], str(error)) from None

    return answer


def _described(model: str, member: Member) -> dict[str, object]:
    session = member.session
    return {
        "model": model,
        "worker": member.handle.worker_id,
        "role": member.role_name,
        "state": member.state.value,
        "requests": session.load.requests if session else 0,
        "pid": session.info.pid if session else None,
        "host": session.info.metrics_address.rpartition(":")[0] if session else None,
        "trouble": member.trouble,
        "predecessor": session.info.predecessor if session else "",
        "weight_version": version_of(session.info.served) if session else None,
        "adapters": [adapter_figures(use) for use in session.adapters.uses] if session else [],
    }


def _timeout(request: Request, default: float) -> float:
    text = request.query_params.get("timeout")
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise HTTPException(400, f"timeout={text}: use a number of seconds")
    return seconds


def _forced(request: Request) -> bool:
    return request.query_params.get("force") == "1"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
