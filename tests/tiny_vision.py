"""Tokenizers, image processors, chat templates and configurations of tiny vision models, and test images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.lib.vision_folder import QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer

PARTS_ONLY: Final = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""Idefics3's and SmolVLM's: a content that is a string is lost."""
GEMMA: Final = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA4: Final = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '<|image|>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
_ROWS: Final = tuple(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7))
_IDEFICS: Final = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *_ROWS)
_NORMAL: Final = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True, "do_rescale": True}


class TinyProcessor:
    """Files of a model type's processor, with small images."""

    def __init__(
        self,
        name: str,
        image_processor: Mapping[str, Any],
        tokens: tuple[str, ...],
        template: str,
        *,
        image_token: str,
        named: Mapping[str, str] = {},
        **arguments: Any,
    ) -> None:
        self.name, self.template = name, template
        self._image_processor, self._tokens = image_processor, tokens
        self._image_token, self._named, self._arguments = image_token, named, arguments

    def save(self, folder: Path) -> int:
        """Write all files but config.json. Returns the id of the token that stands for a row."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = byte_tokenizer(self._tokens, self._named)
        tokenizer.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(self.template)
        processor = {"processor_class": self.name} | self._arguments
        (folder / "processor_config.json").write_text(json.dumps(processor))
        (folder / "preprocessor_config.json").write_text(
            json.dumps(dict(self._image_processor) | {"processor_class": self.name})
        )
        return int(tokenizer.convert_tokens_to_ids(self._image_token))


_IDEFICS_IMAGES: Final = _NORMAL | {
    "size": {"longest_edge": 32},
    "max_image_size": {"longest_edge": 16},
    "do_image_splitting": True,
}
_QWEN_IMAGES: Final = _NORMAL | {
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_GEMMA4: Final = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
PROCESSORS: Final[Mapping[str, TinyProcessor]] = {
    "idefics3": TinyProcessor(
        "Idefics3Processor",
        _IDEFICS_IMAGES | {"image_processor_type": "Idefics3ImageProcessor"},
        _IDEFICS,
        PARTS_ONLY,
        image_token="<image>",
        image_seq_len=4,
    ),
    "smolvlm": TinyProcessor(
        "SmolVLMProcessor",
        _IDEFICS_IMAGES | {"image_processor_type": "SmolVLMImageProcessor"},
        _IDEFICS,
        PARTS_ONLY,
        image_token="<image>",
        image_seq_len=4,
    ),
    "gemma3": TinyProcessor(
        "Gemma3Processor",
        _NORMAL | {"size": {"height": 16, "width": 16}, "image_processor_type": "Gemma3ImageProcessor"},
        ("<start_of_turn>", "<end_of_turn>", "<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        GEMMA,
        image_token="<image_soft_token>",
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        image_seq_length=4,
    ),
    "gemma4": TinyProcessor(
        "Gemma4Processor",
        {
            "image_processor_type": "Gemma4ImageProcessor",
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "max_soft_tokens": 70,
        },
        ("<|turn>", "<turn|>", *_GEMMA4.values()),
        GEMMA4,
        image_token="<|image|>",
        named=_GEMMA4,
    ),
    "qwen2_5_vl": TinyProcessor(
        "Qwen2_5_VLProcessor",
        _QWEN_IMAGES | {"image_processor_type": "Qwen2VLImageProcessor"},
        QWEN_TOKENS,
        QWEN_TEMPLATE,
        image_token="<|image_pad|>",
    ),
    "qwen3_vl": TinyProcessor(
        "Qwen3VLProcessor",
        _QWEN_IMAGES | {"image_processor_type": "Qwen2VLImageProcessor"},
        QWEN_TOKENS,
        QWEN_TEMPLATE,
        image_token="<|image_pad|>",
    ),
}


def save_vision_files(model_type: str, folder: Path) -> int:
    """Everything but weights. Returns the id of the token that stands for a row of an image."""
    image_token_id = PROCESSORS[model_type].save(folder)
    config = {"model_type": model_type, "image_token_id": image_token_id}
    (folder / "config.json").write_text(json.dumps(config))
    return image_token_id


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Random colours."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
