"""Tiny vision models with their tokenizers and image processors, and transformers' answers about images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from transformers import PreTrainedModel

from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.processor import ImageProcessor
from tests.faults.support.small_model import MAX_LEN, SmallModel
from tests.tiny_vision import PROCESSORS
from tests.unit.engine.media.vlms import FAMILIES

TOKENS: Final = 8
VOCAB: Final = 320
_ARRAYS: Final = ("pixel_values", "pixel_attention_mask", "image_grid_thw", "image_position_ids")
_EYES: Final[Mapping[str, Mapping[str, Any]]] = {
    "smolvlm": {"image_size": 16, "patch_size": 4, "initializer_range": 0.5},
    "gemma3": {"image_size": 16, "patch_size": 4},
    "gemma4": {"patch_size": 4, "position_embedding_size": 64},
}
"""Fields of vision models whose images are those of the processors of `tests.tiny_vision`."""
_NAMES: Final = {"qwen2_5_vl": "qwen2.5-vl", "qwen3_vl": "qwen3-vl"}


@dataclass
class Asked:
    """What one conversation must be answered with."""

    prompt: list[int]
    answer: list[int]


class VisionModel:
    """A model in a folder, with transformers' answers."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type: Final = model_type
        family = FAMILIES[_NAMES.get(model_type, model_type)]
        self.row_id = PROCESSORS[model_type].save(folder)
        torch.manual_seed(0)
        model = _resized(family.make, model_type, self.row_id)
        head: torch.nn.Linear = model.get_output_embeddings()
        head.weight.data[self.row_id :] = 0.0  # it never answers with a part of an image
        model.save_pretrained(folder)
        self.small = SmallModel(folder, model, Tokenizer.load(folder, vocab_size=VOCAB))
        self._kinds: Final = family.kinds

    @cached_property
    def _processor(self) -> Any:
        return ImageProcessor(self.small.folder, {})._processor

    def rendered(self, parts: Sequence[str | Image.Image]) -> str:
        """The prompt with one placeholder for each image."""
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts]
        text: str = self._processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return text

    def prompt(self, parts: Sequence[str | Image.Image]) -> list[int]:
        ids: list[int] = self._processed(parts)["input_ids"][0].tolist()
        return ids

    def expected(
        self,
        parts: Sequence[str | Image.Image],
        tokens: int = TOKENS,
        weights: PreTrainedModel | None = None,
    ) -> Asked:
        """`weights`: those that answer; None: the model's own."""
        model = self.small.model if weights is None else weights
        given = self._processed(parts)
        prompt: list[int] = given["input_ids"][0].tolist()
        arrays = {name: given[name] for name in _ARRAYS if name in given}
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(tokens):
                all_ids = torch.tensor([ids])
                kinds = {} if self._kinds is None else {self._kinds: (all_ids == self.row_id).long()}
                output = model(input_ids=all_ids, use_cache=False, **arrays, **kinds)
                ids.append(int(output.logits[0, -1].argmax()))
        return Asked(prompt, ids[len(prompt) :])

    def _processed(self, parts: Sequence[str | Image.Image]) -> Any:
        images = [part for part in parts if isinstance(part, Image.Image)]
        return self._processor(
            text=[self.rendered(parts)],
            images=[images] if images else None,
            add_special_tokens=False,
            return_tensors="pt",
        )


def _resized(make: Callable[[], PreTrainedModel], model_type: str, row_id: int) -> PreTrainedModel:
    """A model of the tokenizer's vocabulary, and of longer prompts."""
    model = make()
    fields = model.config.to_dict()
    fields["text_config"] |= {"vocab_size": VOCAB, "max_position_embeddings": MAX_LEN}
    if "vocab_size_per_layer_input" in fields["text_config"]:
        fields["text_config"]["vocab_size_per_layer_input"] = VOCAB
    fields["vision_config"] |= _EYES.get(model_type, {})
    fields |= {name: row_id for name in ("image_token_id", "image_token_index") if name in fields}
    if "mm_tokens_per_image" in fields:
        fields["mm_tokens_per_image"] = 4
    torch.manual_seed(0)
    made = type(model)(type(model.config).from_dict(fields)).eval()
    if model_type == "gemma3":
        made.model.multi_modal_projector.mm_input_projection_weight.data.normal_()  # zeros by default
    return made
