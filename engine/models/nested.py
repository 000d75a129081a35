"""A model of the Llama family that checkpoints with a vision part nest: Gemma 3, Mistral 3, Qwen-VL."""

from __future__ import annotations

from typing import Final

from engine.models.llama import LlamaModel

_NESTED: Final = {
    "model.language_model.": "model.",  # transformers from 4.52 on
    "language_model.model.": "model.",  # before
    "language_model.lm_head.": "lm_head.",
}
_VISION: Final = ("vision_tower.", "multi_modal_projector.", "visual.")


class NestedModel(LlamaModel):
    def source_name(self, name: str) -> str:
        for nested, plain in _NESTED.items():
            if name.startswith(nested):
                return plain + name.removeprefix(nested)
        return name

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or name.removeprefix("model.").startswith(_VISION)
