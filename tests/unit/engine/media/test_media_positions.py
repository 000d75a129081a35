"""Positions by M-RoPE, against those of transformers."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from engine.core.batch.media_positions import positions_of
from engine.core.media import MediaItem

_SIDE = st.integers(1, 4)
_IMAGES = st.lists(st.tuples(st.integers(0, 5), _SIDE, _SIDE), max_size=4)
"""Tokens of text before an image, and its rows and columns."""


class _Config:
    config = Qwen2_5_VLConfig()
    get_vision_position_ids = Qwen2_5_VLModel.get_vision_position_ids


def _of_transformers(images: list[tuple[int, int, int]], after: int) -> np.ndarray:
    kinds = [kind for text, h, w in images for kind in [0] * text + [1] * (h * w)] + [0] * after
    grids = torch.tensor([[1, 2 * h, 2 * w] for _, h, w in images])
    ids = torch.zeros(1, len(kinds), dtype=torch.int64)
    found, _ = Qwen2_5_VLModel.get_rope_index(_Config(), ids, torch.tensor([kinds]), grids)  # type: ignore[arg-type]
    return found[:, 0].numpy()


@given(images=_IMAGES, after=st.integers(1, 6), data=st.data())
def test_positions_of_every_chunk_are_those_of_transformers(
    images: list[tuple[int, int, int]], after: int, data: st.DataObject
) -> None:
    images = [(max(text, 1), h, w) for text, h, w in images]  # it takes adjacent images for one
    media, offset = [], 0
    for text, h, w in images:
        media.append(MediaItem(bytes(32), offset + text, h * w, (1, 2 * h, 2 * w)))
        offset = media[-1].end
    whole = _of_transformers(images, after)
    start = data.draw(st.integers(0, offset + after - 1))
    end = data.draw(st.integers(start + 1, offset + after))
    assert positions_of(media, 2, start, end).tolist() == whole[:, start:end].tolist()


def test_an_answer_goes_on_from_the_positions_that_its_images_take() -> None:
    image = MediaItem(bytes(32), 3, 12, (1, 4, 12))  # 2 rows of 6
    assert positions_of([image], 2, 20, 21).tolist() == [[20 - 12 + 6]] * 3
