"""New weights as tensors: SGLang's update from tensors, and the four phases of vLLM's weight transfer."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from router.api.fields import Refused
from router.api.generation.params.validation import RequestModel
from router.config.choices import UpdateMode
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.weights.tensors import StagedTensors, Tensors
from router.dispatch.weights.update_result import UpdateDone
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest

MAX_BODY_BYTES: Final = 1 << 30
"""Largest body with tensors; an update of more has several, between its begin and its end."""
_NO_GROUP: Final = (
    "the router joins no process group of a trainer; send tensors in the body, a safetensors file of this"
    " machine, or a folder"
)
_Group: TypeAlias = Annotated[Any, Refused(_NO_GROUP)]

Folder: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]
Version: TypeAlias = Annotated[str, Field(max_length=256)]
Mode: TypeAlias = Literal["rolling", "together"]
Encoded: TypeAlias = Annotated[str, Field(min_length=1)]
"""Base64 of the bytes of a safetensors file (`safetensors.torch.save`)."""


class UpdateInfo(RequestModel):
    """One of the three."""

    model_path: Folder | None = None
    """Folder of the weights, on the machine of every worker."""
    tensors: Encoded | None = None
    """Base64 of a safetensors file: all tensors, or some."""
    tensors_file: Folder | None = None
    """Path of a safetensors file on the router's machine, such as in /dev/shm."""

    names: _Group = None
    dtype_names: _Group = None
    shapes: _Group = None
    packed: Annotated[Any, Refused(_NO_GROUP, (False,))] = None

    @model_validator(mode="after")
    def _check_one(self) -> UpdateInfo:
        given = [self.model_path, self.tensors, self.tensors_file]
        if sum(value is not None for value in given) != 1:
            raise InvalidRequest(
                "One of model_path, tensors and tensors_file is needed.", param="update_info"
            )
        return self


class InitInfo(RequestModel):
    backend: Literal["tensors", "folder"] = "tensors"
    """Either is taken, whatever this says."""

    master_address: _Group = None
    master_port: _Group = None
    rank_offset: _Group = None
    world_size: _Group = None
    packed: Annotated[Any, Refused(_NO_GROUP, (False,))] = None


class InitWeightTransfer(RequestModel):
    """As vLLM's; there is no engine to set up."""

    init_info: InitInfo = Field(default_factory=InitInfo)


class StartWeightUpdate(RequestModel):
    """As vLLM's."""

    is_checkpoint_format: Annotated[Any, Refused("tensors have the names of checkpoints", (True,))] = None


class FinishWeightUpdate(RequestModel):
    """As vLLM's."""

    weight_version: Version | None = None
    update_mode: Mode | None = None


class UpdateWeightsFromTensor(RequestModel):
    """As SGLang's; tensors in safetensors."""

    serialized_named_tensors: Annotated[list[Encoded], Field(min_length=1)]
    """Base64 of safetensors files: all tensors, or some."""
    weight_version: Version | None = None
    load_format: Literal["auto", "safetensors"] | None = None
    abort_all_requests: bool = False
    """Without it, running requests are kept."""
    flush_cache: bool = True
    """No cached KV of old weights is found again, whatever this says."""
    update_mode: Mode | None = None
    """As in /update_weights_from_disk."""


async def from_tensor(updates: WeightUpdates, body: UpdateWeightsFromTensor) -> UpdateDone:
    new: Tensors = {}
    for encoded in body.serialized_named_tensors:
        new = await _with(new, updates.tensors, _decoded(encoded, "serialized_named_tensors"))
    mode = PauseMode.ABORT if body.abort_all_requests else PauseMode.KEEP
    return await updates.update_tensors(new, body.weight_version or "", mode, how_of(body.update_mode))


async def update(
    updates: WeightUpdates, info: UpdateInfo, version: str, how: UpdateMode | None
) -> UpdateDone | None:
    """None: the tensors are kept for the end of the update that has been begun."""
    if info.model_path is not None:
        if updates.tensors.collected is not None:
            raise InvalidRequest(
                "A folder has all weights: send it without /start_weight_update.", param="update_info"
            )
        return await updates.update(info.model_path, version, how=how)
    collected = updates.tensors.collected
    source = _given(info)
    if collected is None:
        return await updates.update_tensors(await _with({}, updates.tensors, source), version, how=how)
    new = await _with(collected, updates.tensors, source)
    if updates.tensors.collected is not collected:
        raise InvalidRequest("The update has ended meanwhile.", code="no_update")
    updates.tensors.collected = new
    return None


def start(updates: WeightUpdates) -> None:
    """Begin to collect; what was collected before is forgotten."""
    updates.tensors.collected = {}


async def finish(updates: WeightUpdates, body: FinishWeightUpdate) -> UpdateDone | None:
    """None: there were no tensors, and nothing has changed."""
    new, updates.tensors.collected = updates.tensors.collected, None
    if new is None:
        raise InvalidRequest("No update has been begun: use /start_weight_update.", code="no_update")
    if not new:
        return None
    return await updates.update_tensors(new, body.weight_version or "", how=how_of(body.update_mode))


def how_of(asked: str | None) -> UpdateMode | None:
    return None if asked is None else UpdateMode(asked)


def _given(info: UpdateInfo) -> Callable[[], bytes | Path]:
    if info.tensors is not None:
        return _decoded(info.tensors, "update_info.tensors")
    path = Path(info.tensors_file or "")
    return lambda: path


def _decoded(encoded: str, param: str) -> Callable[[], bytes | Path]:
    def decode() -> bytes:
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise InvalidRequest("The tensors are not in base64.", param=param) from None

    return decode


async def _with(before: Tensors, staged: StagedTensors, source: Callable[[], bytes | Path]) -> Tensors:
    """`before` with the tensors of another file. Raises InvalidRequest."""
    return {**before, **await asyncio.to_thread(lambda: staged.read(source()))}
