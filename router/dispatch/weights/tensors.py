"""New weights as tensors: collected here, and sent to the machines of workers, where they become folders."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from engine.model_config.errors import WeightsError
from engine.modeling.loader.stored_tensors import StoredTensor, as_file, stored_tensors
from engine.modeling.loader.weight_files import check_whole
from router.dispatch.workers.every_worker import WorkerRefused
from router.dispatch.workers.session import WorkerSession
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2
from worker.staged_weights import STAGED

_CODE: Final = (b"\x80", b"PK")
"""First bytes of what pickle and torch.save write."""

Tensors: TypeAlias = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class _Staged:
    """A folder that workers make."""

    after: str
    """What was served when it was prepared."""
    base: str
    """Folder of the other tensors; empty: that of the start."""
    tensors: Tensors


@dataclass(slots=True)
class StagedTensors:
    """The tensors of updates, in files of this machine (TMPDIR), as long as a worker may need them."""

    collected: Tensors | None = None
    """Tensors of an update that has been begun; None: there is none."""
    _place: TemporaryDirectory[str] = field(
        default_factory=lambda: TemporaryDirectory(prefix="baton-tensors-", ignore_cleanup_errors=True)
    )
    _key: str = field(default_factory=lambda: secrets.token_hex(8))
    _staged: dict[str, _Staged] = field(default_factory=dict)
    """Folders by name."""

    def read(self, source: bytes | Path) -> Tensors:
        """The tensors of a safetensors file, which is copied. Blocks. Raises InvalidRequest."""
        file = Path(self._place.name) / f"{secrets.token_hex(8)}.safetensors"
        try:
            if isinstance(source, bytes):
                file.write_bytes(source)
            else:
                shutil.copyfile(source, file)
            return _tensors_of(file)
        except (WeightsError, OSError) as error:
            file.unlink(missing_ok=True)
            reason = str(error).replace(str(file), "the safetensors file")
            raise InvalidRequest(f"The tensors cannot be read: {reason}.", code="invalid_tensors") from None

    def prepare(self, new: Tensors, served: str) -> str:
        """The name of a folder with these tensors and the others of what is `served`.

        Raises InvalidRequest if those came as tensors to another router.
        """
        if not served.startswith(STAGED):
            base, tensors = served, new
        elif (known := self._staged.get(served)) is not None:
            base, tensors = known.base, {**known.tensors, **new}
        else:
            raise InvalidRequest(
                "The served weights came as tensors, and not to this router: update from a folder first.",
                code="unknown_base",
            )
        folder = f"{STAGED}{self._key}/{secrets.token_hex(8)}"
        self._staged[folder] = _Staged(served, base, tensors)
        return folder

    def check(self, folder: str, served: str) -> None:
        """Raise InvalidRequest if other weights are served now than when `folder` was prepared."""
        if (staged := self._staged.get(folder)) is not None and staged.after != served:
            raise InvalidRequest(
                "The weights have been updated meanwhile: send the tensors again.", code="busy"
            )

    def settle(self, served: str) -> None:
        """Forget all but what is served now, and what is being collected."""
        self._staged = {name: staged for name, staged in self._staged.items() if name == served}
        tensors = [one for staged in self._staged.values() for one in staged.tensors.values()]
        used = {tensor.file for tensor in [*tensors, *(self.collected or {}).values()]}
        for file in Path(self._place.name).iterdir():
            if file not in used:
                file.unlink(missing_ok=True)

    async def stage(self, session: WorkerSession, folder: str) -> None:
        """Have a folder made on a worker's machine, unless it is no folder of tensors, or is there already.

        Raises WorkerRefused, RpcError.
        """
        if (staged := self._staged.get(folder)) is None:
            return
        if refused := await session.stage_weights(self._parts(folder, staged)):
            raise WorkerRefused(refused)

    async def _parts(self, folder: str, staged: _Staged) -> AsyncIterator[worker_pb2.WeightsPart]:
        yield worker_pb2.WeightsPart(folder=folder, base=staged.base, keep=list(self._staged))
        pieces = as_file(staged.tensors.values())
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield worker_pb2.WeightsPart(data=piece)


def _tensors_of(file: Path) -> Tensors:
    """Raises WeightsError for anything but a whole safetensors file with tensors."""
    with file.open("rb") as opened:
        begin = opened.read(2)
    if begin.startswith(_CODE):
        raise WeightsError("it is a pickle, which could run any code: send safetensors.torch.save(…)")
    check_whole([file])
    found = {tensor.name: tensor for tensor in stored_tensors(file)}
    if not found:
        raise WeightsError("it has no tensors")
    return found
