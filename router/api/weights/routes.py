"""Pauses and updates of weights, on all workers by one call, by the routes of vLLM and of SGLang."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from router.api.endpoints.body import read_json_body
from router.api.endpoints.kinds import json_response
from router.api.endpoints.record import Api, ApiEndpoint, Backend
from router.api.generation.off_loop import off_loop
from router.api.generation.params.validation import RequestModel, parse
from router.api.openai.answers.schemas import Closed, Error
from router.api.openai.errors import error_body
from router.api.weights import sleep, tensors
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.weights.agreed_weights import version_of
from router.dispatch.weights.update_result import UpdateDone
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest, NotImplementedHere
from rpc.baton.v1 import worker_pb2

_BodyT = TypeVar("_BodyT", bound=RequestModel)

_MODES: Final = {"retract": PauseMode.KEEP} | {mode.value: mode for mode in PauseMode}
"""Modes of vLLM and of SGLang."""


class PauseStatus(Closed):
    status: Literal[
        "paused",
        "resumed",
        "updated",
        "cleared",
        "initialized",
        "started",
        "received",
        "unchanged",
        "asleep",
        "awake",
    ]


class Paused(Closed):
    is_paused: bool


class Sleeping(Closed):
    is_sleeping: bool


class Weights(Closed):
    weight_version: str
    digest: str
    """Digest of all tensors; empty before the first update."""
    folder: str
    """Folder of the last update; empty: that of the start."""


class WeightInfo(Weights):
    workers: dict[str, Weights]


class WorldSize(Closed):
    world_size: int
    """Ranks of all workers."""


class TransferConfig(Closed):
    weight_transfer_config: None
    """No process group of a trainer is joined: TRL's client says so before it asks for one."""


class ServerInfo(Closed):
    """The part of vLLM's that trainers read."""

    vllm_config: TransferConfig


class Updated(Weights):
    success: Literal[True]
    message: str
    update_mode: Literal["rolling", "together"]
    """How it was done: together also if one worker is connected, or the model is paused."""
    paused: bool
    """Whether requests waited meanwhile."""


class UpdateWeights(RequestModel):
    """As vLLM's. After /start_weight_update, tensors are kept until /finish_weight_update."""

    update_info: tensors.UpdateInfo
    weight_version: tensors.Version = ""
    update_mode: tensors.Mode | None = None
    """None: `--update-mode`."""


class UpdateWeightsFromDisk(RequestModel):
    """As SGLang's."""

    model_path: tensors.Folder
    """Folder of the weights, on the machine of every worker."""
    weight_version: tensors.Version | None = None
    update_mode: tensors.Mode | None = None
    """None: `--update-mode`."""
    load_format: Literal["auto", "safetensors"] | None = None
    abort_all_requests: bool = False
    """Without it, running requests are kept: they go on with the new weights."""
    flush_cache: bool = True
    """No cached KV of old weights is found again, whatever this says."""


class PauseGeneration(RequestModel):
    """As SGLang's."""

    mode: Literal["abort", "retract"] = "abort"
    """`retract` keeps the requests: their KV is computed again after the pause."""


def _updates(backend: Backend, request: Request) -> WeightUpdates:
    """Updates of the model in `?model=`, or of the only one."""
    found = backend.models.find(request.query_params.get("model", "")).weights
    if found is None:
        raise NotImplementedHere("The weights of this model cannot be updated.")
    return found


def _mode(request: Request) -> PauseMode:
    asked = request.query_params.get("mode", PauseMode.ABORT.value)
    if asked not in _MODES:
        raise InvalidRequest(f"mode must be {', '.join(_MODES)}, not {asked[:100]!r}.", param="mode")
    return _MODES[asked]


async def _pause(backend: Backend, request: Request) -> PauseStatus:
    await _updates(backend, request).pause(_mode(request))
    return {"status": "paused"}


async def _pause_generation(updates: WeightUpdates, body: PauseGeneration) -> PauseStatus:
    await updates.pause(_MODES[body.mode])
    return {"status": "paused"}


async def _resume(backend: Backend, request: Request) -> PauseStatus:
    await _updates(backend, request).resume()
    return {"status": "resumed"}


async def _is_paused(backend: Backend, request: Request) -> Paused:
    return {"is_paused": _updates(backend, request).is_paused}


async def _reset(backend: Backend, request: Request) -> PauseStatus:
    await _updates(backend, request).reset_caches()
    return {"status": "cleared"}


async def _info(backend: Backend, request: Request) -> WeightInfo:
    updates = _updates(backend, request)
    workers = {worker: _described(served) for worker, served in updates.workers().items()}
    return {**_described(updates.served), "workers": workers}


async def _world_size(backend: Backend, request: Request) -> WorldSize:
    return {"world_size": _updates(backend, request).num_ranks()}


async def _server_info(backend: Backend, request: Request) -> ServerInfo:
    _updates(backend, request)
    return {"vllm_config": {"weight_transfer_config": None}}


async def _update(updates: WeightUpdates, body: UpdateWeights) -> Updated | PauseStatus:
    how = tensors.how_of(body.update_mode)
    done = await tensors.update(updates, body.update_info, body.weight_version, how)
    return {"status": "received"} if done is None else _updated(done)


async def _update_from_tensor(updates: WeightUpdates, body: tensors.UpdateWeightsFromTensor) -> Updated:
    return _updated(await tensors.from_tensor(updates, body))


async def _init_transfer(updates: WeightUpdates, body: tensors.InitWeightTransfer) -> PauseStatus:
    return {"status": "initialized"}


async def _start(updates: WeightUpdates, body: tensors.StartWeightUpdate) -> PauseStatus:
    tensors.start(updates)
    return {"status": "started"}


async def _finish(updates: WeightUpdates, body: tensors.FinishWeightUpdate) -> Updated | PauseStatus:
    done = await tensors.finish(updates, body)
    return {"status": "unchanged"} if done is None else _updated(done)


async def _update_from_disk(updates: WeightUpdates, body: UpdateWeightsFromDisk) -> Updated:
    mode = PauseMode.ABORT if body.abort_all_requests else PauseMode.KEEP
    version = body.weight_version or ""
    return _updated(await updates.update(body.model_path, version, mode, tensors.how_of(body.update_mode)))


async def _sleep(backend: Backend, request: Request) -> PauseStatus:
    mode = PauseMode.KEEP if "mode" not in request.query_params else _mode(request)
    await sleep.sleep(_updates(backend, request), request, mode)
    return {"status": "asleep"}


async def _wake(backend: Backend, request: Request) -> PauseStatus:
    await sleep.wake(_updates(backend, request), request)
    return {"status": "awake"}


async def _is_sleeping(backend: Backend, request: Request) -> Sleeping:
    return {"is_sleeping": bool(_updates(backend, request).asleep)}


async def _release(updates: WeightUpdates, body: sleep.MemoryBody) -> PauseStatus:
    await updates.sleep(body.kinds, PauseMode.KEEP)
    return {"status": "asleep"}


async def _take(updates: WeightUpdates, body: sleep.MemoryBody) -> PauseStatus:
    await updates.wake(body.kinds)
    return {"status": "awake"}


def _described(served: worker_pb2.ServedWeights) -> Weights:
    return {"weight_version": version_of(served), "digest": served.digest, "folder": served.folder}


def _updated(done: UpdateDone) -> Updated:
    about = _described(done.served)
    message = "Every worker has the weights."
    how: tensors.Mode = done.how.value
    return {"success": True, "message": message, "update_mode": how, "paused": done.paused, **about}


def _plain(
    path: str, answer: Any, summary: str, act: Callable[[Backend, Request], Awaitable[Any]], method: str
) -> ApiEndpoint:
    async def serve(backend: Backend, request: Request) -> Response:
        return json_response(await act(backend, request))

    about = {"answer": answer, "summary": summary, "changes_service": True}
    return ApiEndpoint(path=path, serve=serve, method=method, refusals=("503",), **about)


def _asked(
    path: str,
    body: type[_BodyT],
    answer: Any,
    summary: str,
    act: Callable[[WeightUpdates, _BodyT], Awaitable[Any]],
    most_bytes: int = 0,
) -> ApiEndpoint:
    async def serve(backend: Backend, request: Request) -> Response:
        updates = _updates(backend, request)
        bounds = backend.models.find(request.query_params.get("model", "")).bounds
        raw = await read_json_body(request, max(backend.max_body_bytes, most_bytes))
        asked = await off_loop(len(raw), lambda: parse(body, raw, bounds))
        return json_response(await act(updates, asked))

    about = {"answer": answer, "summary": summary, "changes_service": True}
    return ApiEndpoint(path=path, serve=serve, body=body, **about)


_PAUSED: Final = "Hold back requests; `mode`: abort, wait or keep. Answered when no worker has any."
_RESUMED: Final = "End the pause."
_UPDATED: Final = "Replace the weights of all workers, or of none."
_ASLEEP: Final = "Give back memory of the workers: of KV, or of KV and weights; requests wait."
_AWAKE: Final = "Take the memory again; requests go on."
_INITIALIZED: Final = "Nothing is set up: tensors come in bodies, or from files."
_STARTED: Final = "Begin an update whose tensors come in several bodies."
_WITH_TENSORS: Final = tensors.MAX_BODY_BYTES
_CLEARED: Final = "Drop all cached KV that no request reads."

WEIGHTS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        _plain("/pause", PauseStatus, _PAUSED, _pause, "POST"),
        _plain("/resume", PauseStatus, _RESUMED, _resume, "POST"),
        _plain("/is_paused", Paused, "Whether the model is paused.", _is_paused, "GET"),
        _plain("/weight_info", WeightInfo, "The weights of the service and its workers.", _info, "GET"),
        _plain("/get_world_size", WorldSize, "Number of ranks, of all workers.", _world_size, "GET"),
        _plain("/server_info", ServerInfo, "How weights can be transferred.", _server_info, "GET"),
        _plain("/reset_prefix_cache", PauseStatus, _CLEARED, _reset, "POST"),
        _plain("/flush_cache", PauseStatus, _CLEARED, _reset, "POST"),
        _plain("/flush_cache", None, _CLEARED, _reset, "GET"),
        _plain("/continue_generation", PauseStatus, _RESUMED, _resume, "POST"),
        _plain("/sleep", PauseStatus, _ASLEEP, _sleep, "POST"),
        _plain("/wake_up", PauseStatus, _AWAKE, _wake, "POST"),
        _plain("/is_sleeping", Sleeping, "Whether workers have given memory back.", _is_sleeping, "GET"),
        _asked("/release_memory_occupation", sleep.MemoryBody, PauseStatus, _ASLEEP, _release),
        _asked("/resume_memory_occupation", sleep.MemoryBody, PauseStatus, _AWAKE, _take),
        _asked("/pause_generation", PauseGeneration, PauseStatus, _PAUSED, _pause_generation),
        _asked("/update_weights", UpdateWeights, Updated | PauseStatus, _UPDATED, _update, _WITH_TENSORS),
        _asked(
            "/update_weights_from_tensor",
            tensors.UpdateWeightsFromTensor,
            Updated,
            _UPDATED,
            _update_from_tensor,
            _WITH_TENSORS,
        ),
        _asked(
            "/init_weight_transfer_engine",
            tensors.InitWeightTransfer,
            PauseStatus,
            _INITIALIZED,
            _init_transfer,
        ),
        _asked("/start_weight_update", tensors.StartWeightUpdate, PauseStatus, _STARTED, _start),
        _asked("/finish_weight_update", tensors.FinishWeightUpdate, Updated | PauseStatus, _UPDATED, _finish),
        _asked("/update_weights_from_disk", UpdateWeightsFromDisk, Updated, _UPDATED, _update_from_disk),
    ),
)
