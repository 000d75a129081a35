"""The image processor of a checkpoint, which is transformers' own: pixels to arrays and text.

Processors are those of Pillow and numpy on every machine, whether or not torchvision is installed: equal
images give equal arrays, and so equal digests.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.models.auto import processing_auto
from transformers.models.smolvlm import processing_smolvlm

from common.origin import media_keys
from router.api.media.errors import ImageProcessorFailed
from router.api.media.facts import ProcessedImage, ProcessorFacts
from rpc.baton.v1 import worker_pb2

_CONFIGS: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
"""Files that may name the processor's class."""
_FOR_TEXT: Final = frozenset({"rows", "cols"})
"""Outputs that say how an image is split, for the text alone."""
_IMAGE_PROCESSOR: Final[Any] = AutoImageProcessor
_TOKENIZER: Final[Any] = AutoTokenizer
_PROCESSING: Final[Any] = processing_auto
_SMOLVLM: Final[Any] = processing_smolvlm
_GRID: Final = "image_grid_thw"
_DTYPES: Final[Mapping[str, str]] = {"float64": "float32", "float16": "float32"}


class ImageProcessor:
    """The processor of one checkpoint. Loading takes seconds; an image, milliseconds to a second."""

    def __init__(self, folder: Path, options: Mapping[str, Any], names: Collection[str] = ()) -> None:
        """`options`: arguments for every image, such as Qwen's max_pixels. `names`: of the arrays that
        workers take, none: all; the digest is of all. Raises ImageProcessorFailed."""
        try:
            self._processor: Final = _load(folder)
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            self._options: Final = self._processor._merge_kwargs(images_kwargs=dict(options))["images_kwargs"]
        except Exception as error:  # of the library, about files of any kind
            raise ImageProcessorFailed(
                f"the image processor of {folder} cannot be loaded: {error}"
            ) from error
        row_id = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
        placeholder = getattr(self._processor, "image_token", None)
        if row_id is None or placeholder is None:
            raise ImageProcessorFailed(f"{folder} names no token that stands for images")
        row = self._processor.tokenizer.convert_ids_to_tokens(row_id)
        self.facts: Final = ProcessorFacts(placeholder, row, row_id)
        image_processor = self._processor.image_processor
        self._names: Final = names
        self._identity: Final = json.dumps(
            [type(image_processor).__name__, json.loads(image_processor.to_json_string()), dict(options)],
            sort_keys=True,
        ).encode()

    def process(self, image: Image.Image) -> ProcessedImage:
        """Raises ValueError for an image that the processor does not take."""
        found, [text] = self._processor._process_images([image], **self._options)
        unused = {*_FOR_TEXT, *self._processor.unused_input_names}
        arrays = {name: _plain(name, value) for name, value in found.items() if name not in unused}
        item = worker_pb2.MediaItem(grid=found[_GRID][0].tolist() if _GRID in found else ())
        digest = blake2b(self._identity, digest_size=32)
        for name, values in sorted(arrays.items()):
            data = values.tobytes()
            if not self._names or name in self._names:
                item.arrays.add(name=name, dtype=values.dtype.name, shape=values.shape, data=data)
            digest.update(json.dumps([name, values.dtype.name, values.shape]).encode())
            digest.update(data)
        item.digest = digest.digest()
        ids = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        places = [at for at, token in enumerate(ids) if token == self.facts.row_id]
        if not places:
            raise ValueError("its text has no row")
        item.length = places[-1] + 1 - places[0]
        return ProcessedImage(text, len(places), media_keys(item.digest, range(item.length)), item)


def _plain(name: str, value: Any) -> npt.NDArray[Any]:
    """As a worker takes it. Masks are sent in an eighth of their bytes."""
    values = np.asarray(value)
    dtype = "bool" if name.endswith("mask") else _DTYPES.get(values.dtype.name, values.dtype.name)
    return np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<"), copy=False))


def _load(folder: Path) -> Any:
    """The processor without its parts for videos and sound, which need other packages."""
    of_class = _PROCESSING.processor_class_from_name(_class_name(folder))

    def parts(cls: Any, path: Any, *_: Any, **__: Any) -> list[Any]:
        known = {
            "image_processor": lambda: _IMAGE_PROCESSOR.from_pretrained(
                path, backend="pil", local_files_only=True
            ),
            "tokenizer": lambda: _TOKENIZER.from_pretrained(path, local_files_only=True),
        }
        return [known[name]() if name in known else None for name in cls.get_attributes()]

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else of_class.check_argument_for_proper_class(self, name, part)

    if _SMOLVLM.num2words is None:
        _SMOLVLM.num2words = str  # a package that writes the prompts of videos
    members = {
        "_get_arguments_from_pretrained": classmethod(parts),
        "check_argument_for_proper_class": check,
    }
    images_only: Any = type(of_class.__name__, (of_class,), members)
    return images_only.from_pretrained(folder, local_files_only=True)


def _class_name(folder: Path) -> str:
    for name in _CONFIGS:
        file = folder / name
        if file.exists() and (found := json.loads(file.read_text("utf-8")).get("processor_class")):
            return str(found)
    model_type = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
    return str(_PROCESSING.PROCESSOR_MAPPING_NAMES[model_type])
