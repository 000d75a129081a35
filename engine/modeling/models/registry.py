"""Maps the name of an architecture, one of `ARCHITECTURES`, to the class of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from engine.model_config.eagle_spec import EAGLE3
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.models.base import CausalLM
from engine.modeling.models.bert import BertModel
from engine.modeling.models.deepseek import DeepseekModel, KimiLinearModel
from engine.modeling.models.eagle3 import Eagle3Head
from engine.modeling.models.gemma4 import Gemma4Model
from engine.modeling.models.gpt2 import GPT2Model
from engine.modeling.models.llama import LlamaModel
from engine.modeling.models.mamba2 import GraniteHybridModel, NemotronHModel
from engine.modeling.models.ministral import Ministral3Model
from engine.modeling.models.mtp import DeepseekMtpHead, MtpHead, Qwen3NextMtpHead
from engine.modeling.models.qwen3_next import Qwen3NextModel
from engine.modeling.models.rearranged import ErnieMoeModel, GptOssModel, Qwen3VLMoeModel

_Build: TypeAlias = Callable[[ModelSpec, Layers], CausalLM]


def ministral3(spec: ModelSpec, layers: Layers) -> CausalLM:
    """Mistral Small 3.1 has the same class in config.json, and no factor."""
    scaled = spec.rope is not None and spec.rope.query_scaling
    return (Ministral3Model if scaled else LlamaModel)(spec, layers)


_MODELS: Final[dict[str, _Build]] = {
    "Ernie4_5_MoeForCausalLM": ErnieMoeModel,
    "GptOssForCausalLM": GptOssModel,
    "Qwen3VLMoeForConditionalGeneration": Qwen3VLMoeModel,
    "Ministral3ForCausalLM": ministral3,
    "Mistral3ForConditionalGeneration": ministral3,
    "Qwen3NextForCausalLM": Qwen3NextModel,
    "Qwen3_5ForCausalLM": Qwen3NextModel,
    "Qwen3_5ForConditionalGeneration": Qwen3NextModel,
    "Qwen3_5MoeForCausalLM": Qwen3NextModel,
    "Qwen3_5MoeForConditionalGeneration": Qwen3NextModel,
    "DeepseekV2ForCausalLM": DeepseekModel,
    "DeepseekV3ForCausalLM": DeepseekModel,
    "DeepseekV32ForCausalLM": DeepseekModel,
    "GlmMoeDsaForCausalLM": DeepseekModel,
    "Glm4MoeLiteForCausalLM": DeepseekModel,
    "Gemma4ForCausalLM": Gemma4Model,
    "Gemma4ForConditionalGeneration": Gemma4Model,
    "Gemma4UnifiedForCausalLM": Gemma4Model,
    "Gemma4UnifiedForConditionalGeneration": Gemma4Model,
    "NemotronHForCausalLM": NemotronHModel,
    "GraniteMoeHybridForCausalLM": GraniteHybridModel,
    "KimiLinearForCausalLM": KimiLinearModel,
    "GPT2LMHeadModel": GPT2Model,
    "BertModel": BertModel,
    "RobertaModel": BertModel,
    "XLMRobertaModel": BertModel,
    EAGLE3: Eagle3Head,
}
"""Where it is not that of Llama."""

_MTP_HEADS: Final[dict[_Build, _Build]] = {
    LlamaModel: MtpHead,
    DeepseekModel: DeepseekMtpHead,
    Qwen3NextModel: Qwen3NextMtpHead,
}
"""MTP heads by the model's class."""


def build(spec: ModelSpec, layers: Layers) -> CausalLM:
    """Build this rank's part with uninitialised weights, on torch's current default device and dtype."""
    model = _MODELS.get(spec.architecture, LlamaModel)
    return (_MTP_HEADS[model] if spec.is_mtp_head else model)(spec, layers)
