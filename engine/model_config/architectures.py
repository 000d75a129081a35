"""The architectures that Baton runs, by the name that config.json gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.model_config.config_fields import Config, llama
from engine.model_config.eagle_spec import EAGLE3, eagle3, is_eagle3
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families import delta, dense, encoders, experts, gemma4, latent, mamba2
from engine.model_config.parts.layer_options import Head


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one class of transformers is described by its config.json."""

    model_type: str
    """Names the architecture in folders that have no `architectures`."""
    read: Callable[[Config], dict[str, Any]]
    """Fields of `ModelSpec` that depend on the architecture."""
    text_types: frozenset[str] = frozenset()
    """With a vision part: the model types of `text_config` that `read` describes."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": Architecture("llama", llama),
    "MistralForCausalLM": Architecture("mistral", llama),
    "MinistralForCausalLM": Architecture("ministral", llama),
    "Phi3ForCausalLM": Architecture("phi3", dense.phi3),
    "SmolLM3ForCausalLM": Architecture("smollm3", dense.smollm3),
    "Olmo2ForCausalLM": Architecture("olmo2", dense.olmo2),
    "Olmo3ForCausalLM": Architecture("olmo3", dense.olmo3),
    "Gemma2ForCausalLM": Architecture("gemma2", dense.gemma2),
    "Gemma3ForCausalLM": Architecture("gemma3_text", dense.gemma3),
    "Gemma3ForConditionalGeneration": Architecture(
        "gemma3", dense.gemma3, text_types=frozenset({"gemma3_text"})
    ),
    "Gemma4ForCausalLM": Architecture("gemma4_text", gemma4.gemma4),
    "Gemma4ForConditionalGeneration": Architecture(
        "gemma4", gemma4.gemma4, text_types=frozenset({"gemma4_text"})
    ),
    "Gemma4UnifiedForCausalLM": Architecture("gemma4_unified_text", gemma4.gemma4),
    "Gemma4UnifiedForConditionalGeneration": Architecture(
        "gemma4_unified", gemma4.gemma4, text_types=frozenset({"gemma4_unified_text"})
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", dense.qwen2),
    "Qwen3ForCausalLM": Architecture("qwen3", dense.qwen3),
    "SeedOssForCausalLM": Architecture("seed_oss", dense.seed_oss),
    "GraniteForCausalLM": Architecture("granite", dense.granite),
    "GlmForCausalLM": Architecture("glm", dense.glm),
    "Glm4ForCausalLM": Architecture("glm4", dense.glm4),
    "Exaone4ForCausalLM": Architecture("exaone4", dense.exaone4),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5", dense.ernie4_5),
    "Ministral3ForCausalLM": Architecture("ministral3", dense.mistral3),
    "Mistral3ForConditionalGeneration": Architecture(
        "mistral3", dense.mistral3, text_types=frozenset({"ministral3", "mistral"})
    ),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        "qwen2_5_vl", dense.qwen2, text_types=frozenset({"qwen2_5_vl_text"})
    ),
    "Qwen3VLForConditionalGeneration": Architecture(
        "qwen3_vl", dense.qwen3, text_types=frozenset({"qwen3_vl_text"})
    ),
    "MixtralForCausalLM": Architecture("mixtral", experts.mixtral),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", experts.qwen2_moe),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", experts.qwen3_moe),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        "qwen3_vl_moe", experts.qwen3_vl_moe, text_types=frozenset({"qwen3_vl_moe_text"})
    ),
    "OlmoeForCausalLM": Architecture("olmoe", experts.olmoe),
    "MiniMaxM2ForCausalLM": Architecture("minimax_m2", experts.minimax_m2),
    "HYV3ForCausalLM": Architecture("hy_v3", experts.hy_v3),
    "Glm4MoeForCausalLM": Architecture("glm4_moe", experts.glm4_moe),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5_moe", experts.ernie4_5_moe),
    "GptOssForCausalLM": Architecture("gpt_oss", experts.gpt_oss),
    "Qwen3NextForCausalLM": Architecture("qwen3_next", delta.qwen3_next),
    "Qwen3_5ForCausalLM": Architecture("qwen3_5_text", delta.qwen3_5),
    "Qwen3_5ForConditionalGeneration": Architecture(
        "qwen3_5", delta.qwen3_5, text_types=frozenset({"qwen3_5_text"})
    ),
    "Qwen3_5MoeForCausalLM": Architecture("qwen3_5_moe_text", delta.qwen3_5_moe),
    "Qwen3_5MoeForConditionalGeneration": Architecture(
        "qwen3_5_moe", delta.qwen3_5_moe, text_types=frozenset({"qwen3_5_moe_text"})
    ),
    "DeepseekV2ForCausalLM": Architecture("deepseek_v2", latent.deepseek_v2),
    "DeepseekV3ForCausalLM": Architecture("deepseek_v3", latent.deepseek_v3),
    "DeepseekV32ForCausalLM": Architecture("deepseek_v32", latent.deepseek_v32),
    "GlmMoeDsaForCausalLM": Architecture("glm_moe_dsa", latent.glm_moe_dsa),
    "Glm4MoeLiteForCausalLM": Architecture("glm4_moe_lite", latent.glm4_moe_lite),
    "NemotronHForCausalLM": Architecture("nemotron_h", mamba2.nemotron_h),
    "GraniteMoeHybridForCausalLM": Architecture("granitemoehybrid", mamba2.granite_moe_hybrid),
    "KimiLinearForCausalLM": Architecture("kimi_linear", latent.kimi_linear),
    "GPT2LMHeadModel": Architecture("gpt2", dense.gpt2),
    "BertModel": Architecture("bert", encoders.bert),
    "RobertaModel": Architecture("roberta", encoders.roberta),
    "XLMRobertaModel": Architecture("xlm-roberta", encoders.roberta),
    EAGLE3: Architecture("eagle3", eagle3),
}
"""Architectures by the class name in config.json."""

_TEXT_TYPES: Final = {"kimi_k2": "deepseek_v3"}
"""Model types of language models that have the architecture of another type."""

_MISSING: Final[Mapping[str, Callable[[Config], bool]]] = {
    "an encoder": lambda config: bool(config.get("is_encoder_decoder")),
    "Mamba's or another recurrent state": lambda config: (
        bool({"linear_attention", "mamba", "conv", "recurrent"} & set(config.get("layer_types") or ()))
        or any(name.startswith(("ssm_", "mamba_", "state_size")) for name in config)
    ),
    "a sparse attention indexer": lambda config: bool(config.get("index_topk")),
    "another language model": lambda config: bool(config.get("text_config")),
    "audio": lambda config: "audio_config" in config,
    "ALiBi": lambda config: bool(config.get("alibi")),
}
"""Features that Baton lacks, and how config.json shows them."""


_OTHER_HEADS: Final = {
    "Gemma3TextModel": ("Gemma3ForCausalLM", Head.NONE),
    "Gemma3TextForSequenceClassification": ("Gemma3ForCausalLM", Head.LABELS),
}
_ENDINGS: Final = {
    "Model": Head.NONE,
    "ForMaskedLM": Head.NONE,
    "ForSequenceClassification": Head.LABELS,
}
"""Endings of class names with another head than that of `ARCHITECTURES`."""


def _with_head(name: str) -> tuple[str, Head] | None:
    """The architecture and the head of a class of transformers, if Baton runs it."""
    if name in ARCHITECTURES:
        return name, Head.NONE if name.endswith("Model") and not name.endswith(
            "LMHeadModel"
        ) else Head.VOCABULARY
    if name in _OTHER_HEADS:
        return _OTHER_HEADS[name]
    for ending, head in _ENDINGS.items():
        stem = name.removesuffix(ending)
        for base in (f"{stem}ForCausalLM", f"{stem}Model"):
            if stem != name and base in ARCHITECTURES:
                return base, head
    return None


def architecture_of(config: Config) -> tuple[str, Head]:
    """The first architecture of config.json that Baton runs, and its head. Raises UnsupportedModel."""
    if is_eagle3(config):
        return EAGLE3, Head.VOCABULARY
    by_type = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    named = config.get("architectures") or [by_type.get(config.get("model_type", ""))]
    for name in named:
        if name and (found := _with_head(name)) is not None:
            _check_text(found[0], config)
            return found
    language = (config.get("text_config") or {}).get("model_type", "")
    if known := by_type.get(_TEXT_TYPES.get(language, language)):
        return (
            known,
            Head.VOCABULARY,
        )  # a wrapper that Baton does not know, around a language model that it does
    what = ", ".join(filter(None, named)) or f"model_type {config.get('model_type')!r}"
    missing = ", ".join(feature for feature, needed in _MISSING.items() if needed(config))
    needs = f": it needs {missing}" if missing else ""
    raise UnsupportedModel(f"{what} is not supported{needs}; Baton runs {', '.join(sorted(ARCHITECTURES))}")


def is_lacking(config: Config) -> bool:
    """Whether no way of running the model has what it needs."""
    others = ("another language model", "audio")  # which text does without
    return any(needed(config) for feature, needed in _MISSING.items() if feature not in others)


def _check_text(name: str, config: Config) -> None:
    """Raises UnsupportedModel if the language model within is not the one that the architecture has."""
    known = ARCHITECTURES[name].text_types
    found = (config.get("text_config") or {}).get("model_type")
    if known and found is not None and found not in known:
        raise UnsupportedModel(
            f"{name} with a language model of the type {found} is not supported;"
            f" Baton runs it with {' or '.join(sorted(known))}"
        )
