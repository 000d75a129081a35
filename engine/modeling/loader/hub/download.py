"""Fetches models from the Hugging Face hub, into its own cache."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.model_config.errors import CheckpointError
from engine.modeling.loader.hub.errors import CHOICES, reason_of
from engine.modeling.loader.weight_files import TORCH_FILE, named_weights

_HUB_FILES: Final = ["*.json", "*.jinja", "tokenizer.model"]
_IN_FOLDERS: Final = "*/*"
"""Files that are not read: gpt-oss has its weights a second time in a folder."""
_OF_VISION: Final = "mmproj"
"""Part of the names of GGUF files of vision encoders."""
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def download(model: str) -> Path:
    """The folder of a hub id. Raises CheckpointError."""
    from huggingface_hub import snapshot_download

    with _explained(model):
        path = Path(snapshot_download(model, allow_patterns=_HUB_FILES, ignore_patterns=_IN_FOLDERS))
        if not (path / "config.json").exists():
            raise CheckpointError(
                f"{model} has no config.json; of a repository of GGUF files name one by its quantization, as"
                f" in {model}:Q4_K_M"
            )
        # Not all that is there: Mistral's repositories have them again as consolidated.safetensors.
        weights = [file.name for file in named_weights(path)]
        snapshot_download(model, allow_patterns=weights, ignore_patterns=_IN_FOLDERS)
        if not any((path / name).exists() for name in weights):
            snapshot_download(model, allow_patterns=[TORCH_FILE], ignore_patterns=_IN_FOLDERS)
    return path


def download_gguf(model: str, quantization: str) -> Path:
    """The GGUF file of one quantization of a hub id, or the first part of it.

    Its name ends with the quantization, in whatever case. Raises CheckpointError, also if several do.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    with _explained(model):
        try:
            found = snapshot_download(model, allow_patterns="*.gguf", dry_run=True)
            offered = sorted(file.filename for file in found)
        except DryRunError:  # no network: what was fetched before
            folder = Path(snapshot_download(model, allow_patterns=["*.json"]))
            offered = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.gguf"))
        chosen = _of_quantization(offered, model, quantization)
        return Path(snapshot_download(model, allow_patterns=chosen)) / chosen[0]


def _of_quantization(offered: list[str], model: str, quantization: str) -> list[str]:
    """The parts of the one model. Raises CheckpointError."""
    ending = re.compile(rf"(^|[-._/]){re.escape(quantization)}(-\d{{5}}-of-\d{{5}})?\.gguf$", re.IGNORECASE)
    chosen = [name for name in offered if ending.search(name) and _OF_VISION not in name]
    models = sorted({_PART.sub(".gguf", name) for name in chosen})
    if len(models) != 1:
        found = models or offered
        listed = ", ".join(found[:20]) or "no GGUF file"
        what = "several files" if models else "no file"
        raise CheckpointError(f"{model} has {what} of the quantization {quantization}: {listed}")
    return chosen


def cached(model: str) -> Path:
    """The folder of a hub id without an owner, such as gpt2, if it was fetched before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        raise CheckpointError(f"there is no model {model} on this machine; {CHOICES}") from None


@contextmanager
def _explained(model: str) -> Iterator[None]:
    """Raise CheckpointError for errors of the hub and of its cache."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            free = shutil.disk_usage(HF_HUB_CACHE).free
            raise CheckpointError(
                f"{HF_HUB_CACHE} is full: {model} does not fit in {free:,} free bytes; set HF_HOME to a"
                " folder with more room"
            ) from error
        raise CheckpointError(
            f"{model} is not on this machine and could not be fetched from the hub:"
            f" {reason_of(error, model)}; {CHOICES}"
        ) from None
