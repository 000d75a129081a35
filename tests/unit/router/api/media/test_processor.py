"""Images and prompts against transformers' processors, called directly on a whole conversation."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from common.origin import media_keys
from router.api.media.errors import ImageProcessorFailed
from router.api.media.facts import ProcessedImage
from router.api.media.processor import ImageProcessor
from router.api.media.prompt import ExpandedPrompt
from router.errors import InvalidRequest
from tests.tiny_vision import PROCESSORS, picture, save_vision_files

COMPLETE = ("idefics3", "gemma3")
"""Model types whose processors need no package for videos, which AutoProcessor would ask for."""


@pytest.fixture(params=PROCESSORS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_vision_files(request.param, tmp_path)
    (tmp_path / "type").write_text(request.param)
    return tmp_path


def oracle(folder: Path, mine: ImageProcessor) -> Any:
    if (folder / "type").read_text() in COMPLETE:
        return AutoProcessor.from_pretrained(folder, backend="pil")
    return mine._processor  # the library's class, whose own call is compared


def arrays_of(image: ProcessedImage) -> dict[str, np.ndarray[Any, Any]]:
    found = (
        (each.name, np.frombuffer(each.data, each.dtype).reshape(each.shape)) for each in image.item.arrays
    )
    return dict(found)


def test_ids_and_arrays_are_those_of_transformers(folder: Path) -> None:
    mine = ImageProcessor(folder, {})
    theirs = oracle(folder, mine)
    pictures = [picture(1), picture(2, (17, 60)), picture(3, (64, 64)), picture(1)]
    mark = mine.facts.placeholder
    text = f"Two:{mark}{mark}then {mark}\n\n and again{mark}\n"
    whole = theirs(text=[text], images=[pictures], return_tensors="np")
    images = [mine.process(each) for each in pictures]
    prompt = ExpandedPrompt.of(text, images, mine.facts)
    ids = theirs.tokenizer(prompt.text)["input_ids"]
    assert ids == whole["input_ids"][0].tolist()

    for number, (each, image) in enumerate(zip(pictures, images, strict=True)):
        alone = theirs(text=[mark], images=[[each]], return_tensors="np")
        found = arrays_of(image)
        assert "pixel_values" in found
        for name, values in found.items():
            assert np.array_equal(values, alone[name]), name
        if "image_grid_thw" in found:
            assert list(image.item.grid) == whole["image_grid_thw"][number].tolist()

    media = prompt.placed(ids)
    keys = array("q", ids)
    rows = [at for at, token in enumerate(ids) if token == mine.facts.row_id]
    for item in media.items:
        assert ids[item.offset] == ids[item.offset + item.length - 1] == mine.facts.row_id
        keys[item.offset : item.offset + item.length] = media_keys(item.digest, range(item.length))
    assert media.keys == keys
    assert rows == [at for at in rows if any(i.offset <= at < i.offset + i.length for i in media.items)]
    assert all(key < 0 for at, key in enumerate(keys) if at in set(rows))


def test_digests_differ_by_pixels_sizes_and_options(folder: Path) -> None:
    mine = ImageProcessor(folder, {})
    same = mine.process(picture(1)).item.digest
    assert same == ImageProcessor(folder, {}).process(picture(1)).item.digest
    others = [mine.process(picture(2)), mine.process(picture(1, (30, 40)))]
    others.append(ImageProcessor(folder, {"do_normalize": False}).process(picture(1)))
    assert len({same, *(image.item.digest for image in others)}) == 4


Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(pixel_values=arrays["pixel_values"] + 1),
        lambda arrays: arrays.update(pixel_values=arrays["pixel_values"].reshape(-1)),
        lambda arrays: arrays.update(pixel_values=arrays["pixel_values"].view(np.int32)),
        lambda arrays: arrays.update(other_values=arrays.pop("pixel_values")),
        lambda arrays: arrays.update(more=np.zeros(1, np.float32)),
    ],
    ids=["values", "shape", "type", "name", "an array more"],
)
def test_a_digest_is_of_all_that_the_processor_makes_of_an_image(
    folder: Path, change: Callable[[Arrays], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ImageProcessor(folder, {})
    before = mine.process(picture(1)).item.digest
    made = mine._processor._process_images

    def changed(*given: Any, **options: Any) -> Any:
        arrays, texts = made(*given, **options)
        arrays = {name: np.asarray(value) for name, value in arrays.items()}
        arrays["pixel_values"] = arrays["pixel_values"].astype(np.float32)
        change(arrays)
        return arrays, texts

    monkeypatch.setattr(mine._processor, "_process_images", changed)
    assert mine.process(picture(1)).item.digest != before


def test_a_digest_is_of_the_files_of_the_processor(folder: Path) -> None:
    before = ImageProcessor(folder, {}).process(picture(1)).item.digest
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"made_by": "somebody else"}))
    assert ImageProcessor(folder, {}).process(picture(1)).item.digest != before


def test_images_of_equal_patches_in_another_grid_have_other_digests(tmp_path: Path) -> None:
    save_vision_files("qwen2_5_vl", tmp_path)
    mine = ImageProcessor(tmp_path, {}, ["pixel_values"])
    wide, high = (mine.process(Image.new("RGB", size, "red")).item for size in ((48, 32), (32, 48)))
    assert wide.arrays == high.arrays
    assert [each.name for each in wide.arrays] == ["pixel_values"]
    assert wide.grid != high.grid
    assert wide.digest != high.digest


def test_a_text_with_the_token_of_a_row_is_refused(folder: Path) -> None:
    mine = ImageProcessor(folder, {})
    image = mine.process(picture(1))
    prompt = ExpandedPrompt.of(f"a{mine.facts.placeholder}b", [image], mine.facts)
    ids = mine._processor.tokenizer(prompt.text)["input_ids"]
    with pytest.raises(InvalidRequest, match="stands for a part of an image"):
        prompt.placed([*ids, mine.facts.row_id])
    with pytest.raises(InvalidRequest, match="1 times"):
        ExpandedPrompt.of(mine.facts.placeholder, [], mine.facts)


def test_ends_of_blocks_move_by_the_texts_of_the_images_before_them(folder: Path) -> None:
    mine = ImageProcessor(folder, {})
    mark, image = mine.facts.placeholder, mine.process(picture(1))
    rendered = f"one{mark}two{mark}three"
    prompt = ExpandedPrompt.of(rendered, [image, image], mine.facts)
    for word in ("one", "two", "three"):
        end, moved = rendered.index(word) + 3, prompt.end_of(rendered.index(word) + 3)
        assert prompt.text[moved - 3 : moved] == rendered[end - 3 : end] == word[:3]


def test_a_folder_without_a_processor_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ImageProcessorFailed, match=str(tmp_path)):
        ImageProcessor(tmp_path, {})
