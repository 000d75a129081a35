"""Maps the name of an architecture to its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from engine.layers.factory import Layers
from engine.model_config.eagle_spec import EAGLE3
from engine.model_config.model_spec import ModelSpec
from engine.models.base import CausalLM
from engine.models.deepseek import DeepseekModel
from engine.models.eagle3 import Eagle3Head
from engine.models.ernie import ErnieMoeModel
from engine.models.gpt2 import GPT2Model
from engine.models.gpt_oss import GptOssModel
from engine.models.llama import LlamaModel
from engine.models.mtp import DeepseekMtpHead, MtpHead, Qwen3NextMtpHead
from engine.models.nested import NestedModel
from engine.models.qwen3_next import Qwen3NextModel

_Build: TypeAlias = Callable[[ModelSpec, Layers], CausalLM]

_MODELS: Final[dict[str, _Build]] = {
    "LlamaForCausalLM": LlamaModel,
    "MistralForCausalLM": LlamaModel,
    "MinistralForCausalLM": LlamaModel,
    "Phi3ForCausalLM": LlamaModel,
    "SmolLM3ForCausalLM": LlamaModel,
    "Olmo2ForCausalLM": LlamaModel,
    "Olmo3ForCausalLM": LlamaModel,
    "Gemma2ForCausalLM": LlamaModel,
    "Gemma3ForCausalLM": NestedModel,
    "Gemma3ForConditionalGeneration": NestedModel,
    "SeedOssForCausalLM": LlamaModel,
    "GraniteForCausalLM": LlamaModel,
    "GlmForCausalLM": LlamaModel,
    "Glm4ForCausalLM": LlamaModel,
    "Exaone4ForCausalLM": LlamaModel,
    "Ernie4_5ForCausalLM": LlamaModel,
    "Ministral3ForCausalLM": LlamaModel,
    "Mistral3ForConditionalGeneration": NestedModel,
    "Qwen2_5_VLForConditionalGeneration": NestedModel,
    "Qwen3VLForConditionalGeneration": NestedModel,
    "Ernie4_5_MoeForCausalLM": ErnieMoeModel,
    "Qwen2ForCausalLM": LlamaModel,
    "Qwen3ForCausalLM": LlamaModel,
    "MixtralForCausalLM": LlamaModel,
    "Qwen2MoeForCausalLM": LlamaModel,
    "Qwen3MoeForCausalLM": LlamaModel,
    "OlmoeForCausalLM": LlamaModel,
    "Glm4MoeForCausalLM": LlamaModel,
    "GptOssForCausalLM": GptOssModel,
    "Qwen3NextForCausalLM": Qwen3NextModel,
    "Qwen3_5ForCausalLM": Qwen3NextModel,
    "Qwen3_5ForConditionalGeneration": Qwen3NextModel,
    "Qwen3_5MoeForCausalLM": Qwen3NextModel,
    "Qwen3_5MoeForConditionalGeneration": Qwen3NextModel,
    "DeepseekV2ForCausalLM": DeepseekModel,
    "DeepseekV3ForCausalLM": DeepseekModel,
    "Glm4MoeLiteForCausalLM": DeepseekModel,
    "GPT2LMHeadModel": GPT2Model,
    EAGLE3: Eagle3Head,
}


_MTP_HEADS: Final[dict[_Build, _Build]] = {
    LlamaModel: MtpHead,
    DeepseekModel: DeepseekMtpHead,
    Qwen3NextModel: Qwen3NextMtpHead,
}
"""By the model's class."""


def build(spec: ModelSpec, layers: Layers) -> CausalLM:
    """Build this rank's part with uninitialised weights, on torch's current default device and dtype."""
    model = _MODELS[spec.architecture]
    return (_MTP_HEADS[model] if spec.is_mtp_head else model)(spec, layers)
