"""Routes of vLLM and SGLang that load and unload adapters."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from router.api.endpoints.kinds import changes, json_response
from router.api.endpoints.record import Api
from router.api.fields import Refused, WithoutEffect
from router.api.generation.generation import Generation
from router.api.generation.params.bounds import ModelName
from router.api.generation.params.validation import RequestModel
from router.api.openai.answers.schemas import Error
from router.api.openai.errors import error_body
from router.dispatch.adapters.adapters import ServedAdapters
from router.errors import NotImplementedHere

_Name = Annotated[str, Field(min_length=1)]


class LoadAdapterBody(RequestModel):
    """POST /v1/load_lora_adapter."""

    lora_name: _Name
    lora_path: _Name
    """Folder on the workers' machines, with adapter_config.json."""
    load_inplace: bool | None = None
    """Replace an adapter of this name; answers that run keep the one that they began with."""
    model: ModelName | None = None
    """The served model, if there are several."""
    base_model_name: Annotated[Any, WithoutEffect("an adapter belongs to `model`")] = None
    pinned: Annotated[Any, Refused("adapters in use stay on the device", (False,))] = None


class UnloadAdapterBody(RequestModel):
    """POST /v1/unload_lora_adapter."""

    lora_name: _Name
    lora_int_id: Annotated[Any, WithoutEffect("adapters are known by their names")] = None
    model: ModelName | None = None
    """The served model, if there are several."""


def _adapters(model: Generation) -> ServedAdapters:
    """Raises NotImplementedHere."""
    if model.adapters is None:
        raise NotImplementedHere(
            f"{model.model.name!r} takes no adapters; start the router with --enable-lora."
        )
    return model.adapters


async def _load(model: Generation, body: LoadAdapterBody) -> None:
    await _adapters(model).load(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))


async def _load_as_vllm(model: Generation, body: LoadAdapterBody) -> Response:
    await _load(model, body)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def _unload_as_vllm(model: Generation, body: UnloadAdapterBody) -> Response:
    await _adapters(model).unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _load_as_sglang(model: Generation, body: LoadAdapterBody) -> Response:
    await _load(model, body)
    return _loaded(model)


async def _unload_as_sglang(model: Generation, body: UnloadAdapterBody) -> Response:
    await _adapters(model).unload(body.lora_name)
    return _loaded(model)


def _loaded(model: Generation) -> Response:
    paths = {name: adapter.path for name, adapter in _adapters(model).names.items()}
    return json_response({"success": True, "error_message": "", "loaded_adapters": paths})


ADAPTERS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        changes("/v1/load_lora_adapter", LoadAdapterBody, _load_as_vllm),
        changes("/v1/unload_lora_adapter", UnloadAdapterBody, _unload_as_vllm),
        changes("/load_lora_adapter", LoadAdapterBody, _load_as_sglang),
        changes("/unload_lora_adapter", UnloadAdapterBody, _unload_as_sglang),
    ),
)
