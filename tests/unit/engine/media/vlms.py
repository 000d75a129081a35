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
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from common.origin import media_keys
from engine.core.media import MediaArray, MediaItem
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams

VOCAB: Final = 97
PLACEHOLDER: Final = 90
TEXT: Final[dict[str, Any]] = {
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
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    """Tokens of text around the span."""

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
    kinds: str | None = None
    """Argument that tells the placeholders of images from text."""
    least: int = 1
    """Tokens of the smallest step that can have an image."""

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
            named = {} if self.kinds is None else {self.kinds: (ids == PLACEHOLDER).long()}
            with torch.inference_mode():
                logits = model(input_ids=ids, use_cache=False, **more, **named).logits
            tokens = [*tokens, int(logits[0, -1].argmax())]
        return tokens[-max_tokens:]


def _tokens(part: Part) -> list[int]:
    return [*part.before, *part.tokens, *part.after] if isinstance(part, Image) else part


def tokens_of(parts: Sequence[Part]) -> list[int]:
    return [token for part in parts for token in _tokens(part)]


def request_of(id: int, parts: Sequence[Part], max_tokens: int = 8, **changes: Any) -> Request:
    prompt = tokens_of(parts)
    keys, media, offset = array("q", prompt), [], 0
    for part in parts:
        if isinstance(part, Image):
            media.append(part.at(offset + len(part.before)))
            keys[media[-1].offset : media[-1].end] = media_keys(part.digest, range(len(part.tokens)))
        offset += len(_tokens(part))
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(id, prompt, sampling, prompt_keys=keys, media=tuple(media), **changes)


def without_arrays(request: Request) -> Request:
    request.media = tuple(replace(item, arrays=()) for item in request.media)
    return request


def _noise(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _tiled(config: type[Any], model: type[Any]) -> Callable[[], PreTrainedModel]:
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return lambda: model(
        config(
            text_config=TEXT | {"model_type": "llama"},
            vision_config=eye | {"image_size": 64, "patch_size": 16},
            scale_factor=2,
            tie_word_embeddings=False,
            image_token_id=PLACEHOLDER,
            pad_token_id=0,
        )
    )


def _tiles(generator: torch.Generator) -> Image:
    """Two tiles of four rows, and text around each, as Idefics 3 has it."""
    tokens = (91, 92, *[PLACEHOLDER] * 4, 91, 93, *[PLACEHOLDER] * 4, 91)
    return Image(tokens, {"pixel_values": _noise(generator, 1, 2, 3, 64, 64)})


def _along(dim: int) -> Callable[[Sequence[Image]], dict[str, Tensor]]:
    return lambda images: {"pixel_values": torch.cat([image.arrays["pixel_values"] for image in images], dim)}


def _square(rows: int, side: int, *shape: int) -> Callable[[torch.Generator], Image]:
    """An image of this number of rows, between two tokens."""
    return lambda generator: Image(
        (PLACEHOLDER,) * rows,
        {"pixel_values": _noise(generator, *shape, 3, side, side)},
        before=(91,),
        after=(92,),
    )


def _gemma3() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    language = TEXT | {"sliding_window": 7, "query_pre_attn_scalar": 16, "tie_word_embeddings": False}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3Config(
        text_config=language | {"layer_types": kinds},
        vision_config=eye | {"image_size": 48, "patch_size": 8},
        mm_tokens_per_image=9,
        tie_word_embeddings=False,
        image_token_index=PLACEHOLDER,
        eos_token_id=None,
    )
    model = Gemma3ForConditionalGeneration(config)
    model.model.multi_modal_projector.mm_input_projection_weight.data.normal_()  # zeros by default
    return model


def _gemma4(**language: Any) -> Callable[[], PreTrainedModel]:
    """Heads of two sizes, and a last layer that reads the keys and values of the one before it."""
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    eye |= {"num_attention_heads": 2, "num_key_value_heads": 2, "patch_size": 2, "pooling_kernel_size": 2}
    text = TEXT | {"head_dim": 8, "global_head_dim": 16, "sliding_window": 7, "pad_token_id": 1}
    text |= {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    text |= {"num_kv_shared_layers": 1, "vocab_size_per_layer_input": VOCAB, "tie_word_embeddings": False}
    config = {
        "text_config": text | {"hidden_size_per_layer_input": 8} | language,
        "vision_config": eye | {"position_embedding_size": 32, "initializer_range": 0.3},
        "audio_config": None,
        "initializer_range": 0.3,
        "image_token_id": PLACEHOLDER,
        "tie_word_embeddings": False,
    }
    return lambda: Gemma4ForConditionalGeneration(Gemma4Config(**config))


_NO_SHARES: Final = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}


def _padded_patches(generator: torch.Generator) -> Image:
    """Three lines of three pooled patches, padded to sixteen, between two tokens."""
    y, x = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    places = torch.full((1, 64, 2), -1)
    places[0, :36] = torch.stack([x, y], dim=-1).reshape(-1, 2)
    pixels = torch.rand(1, 64, 12, generator=generator) * (places[..., :1] >= 0)
    arrays = {"pixel_values": pixels, "image_position_ids": places}
    return Image((PLACEHOLDER,) * 9, arrays, before=(91,), after=(92,))


def _placed(images: Sequence[Image]) -> dict[str, Tensor]:
    places = torch.cat([image.arrays["image_position_ids"] for image in images])
    return _along(0)(images) | {"image_position_ids": places}


def _qwen2_5_vl() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "depth": 2, "num_heads": 2, "out_hidden_size": 48}
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    language = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = Qwen2_5_VLConfig(
        text_config=language | {"rope_parameters": sections},
        vision_config=eye | {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]},
        image_token_id=PLACEHOLDER,
        video_token_id=94,
        vision_start_token_id=91,
        vision_end_token_id=92,
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "depth": 3, "num_heads": 2, "out_hidden_size": 48}
    eighth = int(TEXT["head_dim"]) // 8
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2 * eighth, eighth, eighth]}
    config = Qwen3VLConfig(
        text_config=TEXT | {"rope_parameters": sections | {"mrope_interleaved": True}},
        vision_config=eye
        | {"patch_size": 4, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        image_token_id=PLACEHOLDER,
        video_token_id=94,
        vision_start_token_id=91,
        vision_end_token_id=92,
        tie_word_embeddings=False,
    )
    return Qwen3VLForConditionalGeneration(config)


def _qwen3_5() -> PreTrainedModel:
    """Two of four layers have a recurrent state; of each head a half is rotated."""
    eye = {"hidden_size": 16, "intermediate_size": 16, "depth": 2, "num_heads": 2, "out_hidden_size": 48}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    linear |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    language = TEXT | linear | {"num_hidden_layers": 4, "tie_word_embeddings": False}
    language |= {"layer_types": ["linear_attention", "full_attention"] * 2}
    config = Qwen3_5Config(
        text_config=language | {"rope_parameters": sections | {"partial_rotary_factor": 0.5}},
        vision_config=eye | {"patch_size": 4, "num_position_embeddings": 64},
        image_token_id=PLACEHOLDER,
        video_token_id=94,
        vision_start_token_id=91,
        vision_end_token_id=92,
        tie_word_embeddings=False,
    )
    return Qwen3_5ForConditionalGeneration(config)


def _patches(generator: torch.Generator) -> Image:
    """An image of another shape each time: two to four rows of three or four patches after merging."""
    height, width = (int(torch.randint(least, 5, (1,), generator=generator)) for least in (2, 3))
    pixels = _noise(generator, 4 * height * width, 3 * 2 * 4 * 4)
    tokens = (PLACEHOLDER,) * (height * width)
    grid = (1, 2 * height, 2 * width)
    return Image(tokens, {"pixel_values": pixels}, grid, before=(91,), after=(92,))


def _grids(images: Sequence[Image]) -> dict[str, Tensor]:
    return _along(0)(images) | {"image_grid_thw": torch.tensor([image.grid for image in images])}


def _mistral3() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Mistral3Config(
        text_config=TEXT | {"model_type": "mistral", "sliding_window": None},
        vision_config=eye | {"model_type": "pixtral", "image_size": 32, "patch_size": 4},
        image_token_index=PLACEHOLDER,
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return Mistral3ForConditionalGeneration(config)


def _lines(generator: torch.Generator) -> Image:
    """Two lines of three rows, with a token of text after each, as Pixtral has it."""
    arrays = {"pixel_values": _noise(generator, 1, 3, 16, 24), "image_sizes": torch.tensor([[16, 24]])}
    return Image((*[PLACEHOLDER] * 3, 93, *[PLACEHOLDER] * 3, 94), arrays)


def _sizes(images: Sequence[Image]) -> dict[str, Tensor]:
    return _along(0)(images) | {"image_sizes": torch.cat([image.arrays["image_sizes"] for image in images])}


def _internvl() -> PreTrainedModel:
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = InternVLConfig(
        text_config=TEXT | {"model_type": "qwen3"},
        vision_config=eye | {"image_size": [32, 32], "patch_size": [8, 8]},
        image_token_id=PLACEHOLDER,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return InternVLForConditionalGeneration(config)


def _llava(text: str, eye: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    eyes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = {
        "text_config": TEXT | {"model_type": text},
        "vision_config": eyes | {"model_type": eye, "image_size": 32, "patch_size": 8},
        "image_token_index": PLACEHOLDER,
        "tie_word_embeddings": False,
    }
    return lambda: LlavaForConditionalGeneration(LlavaConfig(**config | changes))


def _pixtral_lines(generator: torch.Generator) -> Image:
    """Two lines of three patches."""
    arrays = {"pixel_values": _noise(generator, 1, 3, 16, 24), "image_sizes": torch.tensor([[16, 24]])}
    return Image((*[PLACEHOLDER] * 3, 93, *[PLACEHOLDER] * 3, 94), arrays)


FAMILIES: Final = {
    "smolvlm": Family(_tiled(SmolVLMConfig, SmolVLMForConditionalGeneration), _tiles, _along(1)),
    "idefics3": Family(_tiled(Idefics3Config, Idefics3ForConditionalGeneration), _tiles, _along(1)),
    "gemma3": Family(_gemma3, _square(9, 48, 1), _along(0), "token_type_ids", least=9),
    "gemma4": Family(_gemma4(), _padded_patches, _placed, "mm_token_type_ids"),
    "gemma4 with whole images": Family(
        _gemma4(use_bidirectional_attention="vision", **_NO_SHARES),
        _padded_patches,
        _placed,
        "mm_token_type_ids",
        least=9,
    ),
    "qwen2.5-vl": Family(_qwen2_5_vl, _patches, _grids, "mm_token_type_ids"),
    "qwen3-vl": Family(_qwen3_vl, _patches, _grids, "mm_token_type_ids"),
    "qwen3.5": Family(_qwen3_5, _patches, _grids, "mm_token_type_ids"),
    "mistral3": Family(_mistral3, _lines, _sizes),
    "internvl": Family(_internvl, _square(8, 32, 2), _along(0)),
    "llava": Family(_llava("llama", "clip_vision_model"), _square(16, 32, 1), _along(0)),
    "pixtral": Family(
        _llava("mistral", "pixtral", vision_feature_layer=-1, vision_feature_select_strategy="full"),
        _pixtral_lines,
        _sizes,
    ),
}
