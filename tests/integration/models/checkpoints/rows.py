"""All rows: models, encoders, formats of weights and kinds of files."""

from __future__ import annotations

from typing import Final

from tests.integration.models.checkpoints.models import MODELS
from tests.integration.models.checkpoints.parts import (
    OfAdapter,
    OfConfig,
    OfFile,
    OfName,
    Row,
    classes,
    published,
    quantized,
)
from tests.unit.engine.modeling.loader.published_shapes import LLAMA_8B

_W8: Final = "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized"
ENCODERS: Final = (
    Row(64, "Qwen3-Embedding", classes("Qwen3Model"), True),
    Row(65, "EmbeddingGemma", classes("Gemma3TextModel"), True),
    Row(66, "BGE-M3, E5, all-MiniLM", classes("XLMRobertaModel", "BertModel"), True),
    Row(67, "Qwen3-Reranker", classes("Qwen3ForCausalLM")),
    Row(68, "BGE rerankers", classes("XLMRobertaForSequenceClassification")),
    Row(69, "reward models", classes("LlamaForSequenceClassification", "Qwen2ForSequenceClassification")),
)
FORMATS: Final = (
    Row(70, "LoRA adapters", (OfAdapter("LlamaForCausalLM"),), True),
    Row(
        71,
        "llm-compressor: FP8, W4A16, W8A8, NVFP4",
        published(
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
            "RedHatAI/Qwen3-8B-FP8-block",
            f"{_W8}.w4a16",
            f"{_W8}.w8a8",
            "RedHatAI/Llama-3.1-8B-Instruct-NVFP4",
        ),
    ),
    Row(72, "llm-compressor: MXFP8, 2:4", published("MXFP8 of compressed-tensors", "2:4 sparsity")),
    Row(73, "4 bits in groups of 32, asymmetric", published("asymmetric 4 bits with a format in the group")),
    Row(74, "AutoRound", published("Intel/…-int4-AutoRound")),
    Row(75, "bitsandbytes nf4", published("unsloth/Llama-3.1-8B-Instruct-bnb-4bit")),
    Row(76, "AMD's quark MXFP4", published("amd/Llama-3.1-8B-Instruct-MXFP4, as Quark exports it")),
    Row(77, "FBGEMM FP8", published("meta-llama/Llama-3.1-405B-Instruct-FP8")),
    Row(
        78,
        "NVIDIA's FP8, NVFP4",
        published("nvidia/Llama-3.1-8B-Instruct-NVFP4", "nvidia/DeepSeek-R1-FP4"),
    ),
    Row(
        79,
        "NVIDIA's mixed precision, MXFP8",
        published("nvidia/Qwen3.6-27B-NVFP4, by module", "MXFP8 of modelopt"),
    ),
    Row(80, "MiniMax's MXFP8", (quantized("mxfp8"),)),
    Row(
        81,
        "mlx-community, 4 bits",
        (OfConfig(LLAMA_8B | {"quantization_config": {"group_size": 64, "bits": 4}}),),
    ),
    Row(
        82, "GGUF of Llama, Qwen 2 and 3, Gemma 3", tuple(map(OfFile, ("llama", "qwen2", "qwen3", "gemma3")))
    ),
    Row(
        83,
        "GGUF of later architectures",
        tuple(
            map(
                OfFile,
                (
                    *("qwen3moe", "qwen35", "qwen35moe", "gpt-oss", "gemma4", "glm4moe", "phi3"),
                    *("mistral3", "deepseek2", "lfm2"),
                ),
            )
        ),
    ),
    Row(
        84,
        "GGUF in parts, by the name of a quantization",
        (OfName(tuple(f"m-Q4_K_M-{n:05}-of-00002.gguf" for n in (1, 2)), "Q4_K_M"),),
    ),
)
ROWS: Final = (*MODELS, *ENCODERS, *FORMATS)
