"""Tiny random models of images and text, images for them, and what transformers generates."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel, SmolVLMConfig, SmolVLMForConditionalGeneration

from common.origin import media_keys
from engine.core.media import MediaArray, MediaItem
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams

VOCAB: Final = 97
PLACEHOLDER: Final = 90
TEXT: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class Image:
    """One item as a processor makes it. `tokens`: of the prompt at its span."""

    tokens: tuple[int, ...]
    arrays: Mapping[str, Tensor]
    grid: tuple[int, ...] = ()

    @property
    def digest(self) -> bytes:
        parts = [self.arrays[name].numpy().tobytes() for name in sorted(self.arrays)]
        return hashlib.blake2b(b"".join(parts), digest_size=32).digest()

    def at(self, offset: int) -> MediaItem:
        arrays = [
            MediaArray(name, str(each.dtype).removeprefix("torch."), (*each.shape,), each.numpy().tobytes())
            for name, each in self.arrays.items()
        ]
        return MediaItem(self.digest, offset, len(self.tokens), self.grid, tuple(arrays))


Part = list[int] | Image
"""Part of a prompt: tokens, or an image."""


@dataclass(frozen=True)
class Family:
    make: Callable[[], PreTrainedModel]
    image: Callable[[torch.Generator], Image]
    joined: Callable[[Sequence[Image]], dict[str, Tensor]]
    """Arguments of transformers for the images of a prompt."""

    def save(self, folder: Path, seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        model = self.make().eval()
        head: torch.nn.Linear = model.get_output_embeddings()
        head.weight.data[PLACEHOLDER] = 0.0  # transformers takes one that is generated for an image
        model.save_pretrained(folder)
        return model

    def images(self, count: int, seed: int = 0) -> list[Image]:
        generator = torch.Generator().manual_seed(seed)
        return [self.image(generator) for _ in range(count)]

    def expected(self, model: PreTrainedModel, parts: Sequence[Part], max_tokens: int) -> list[int]:
        """The most likely tokens, without a cache."""
        tokens = tokens_of(parts)
        images = [part for part in parts if isinstance(part, Image)]
        more: dict[str, Any] = self.joined(images) if images else {}
        for _ in range(max_tokens):
            ids = torch.tensor([tokens])
            kinds = (ids == PLACEHOLDER).long()
            with torch.inference_mode():
                logits = model(input_ids=ids, use_cache=False, **more, **self.kinds(kinds)).logits
            tokens = [*tokens, int(logits[0, -1].argmax())]
        return tokens[-max_tokens:]

    def kinds(self, kinds: Tensor) -> dict[str, Tensor]:
        return {}


def tokens_of(parts: Sequence[Part]) -> list[int]:
    return [token for part in parts for token in (part.tokens if isinstance(part, Image) else part)]


def request_of(id: int, parts: Sequence[Part], max_tokens: int = 8, **changes: Any) -> Request:
    prompt = tokens_of(parts)
    keys, media, offset = array("q", prompt), [], 0
    for part in parts:
        if isinstance(part, Image):
            media.append(part.at(offset))
            keys[offset : media[-1].end] = media_keys(part.digest, range(len(part.tokens)))
        offset += len(part.tokens if isinstance(part, Image) else part)
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(id, prompt, sampling, prompt_keys=keys, media=tuple(media), **changes)


def without_arrays(request: Request) -> Request:
    request.media = tuple(replace(item, arrays=()) for item in request.media)
    return request


def _noise(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _smolvlm() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = SmolVLMConfig(
        text_config=TEXT | {"model_type": "llama"},
        vision_config=eye | {"image_size": 64, "patch_size": 16},
        scale_factor=2,
        tie_word_embeddings=False,
        image_token_id=PLACEHOLDER,
        pad_token_id=0,
    )
    return SmolVLMForConditionalGeneration(config)


def _tiles(generator: torch.Generator) -> Image:
    """Two tiles of four rows, and text around each, as Idefics 3 has it."""
    tokens = (91, 92, *[PLACEHOLDER] * 4, 91, 93, *[PLACEHOLDER] * 4, 91)
    return Image(tokens, {"pixel_values": _noise(generator, 1, 2, 3, 64, 64)})


def _along(dim: int) -> Callable[[Sequence[Image]], dict[str, Tensor]]:
    return lambda images: {"pixel_values": torch.cat([image.arrays["pixel_values"] for image in images], dim)}


FAMILIES: Final = {"smolvlm": Family(_smolvlm, _tiles, _along(1))}
