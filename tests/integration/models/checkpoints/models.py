"""Generating models that people serve, one or a few classes of transformers a row."""

from __future__ import annotations

from typing import Final

from router.api.generation.output.call_formats import ToolFormat
from tests.integration.models.checkpoints.parts import OfClass, OfConfig, Row, classes, published
from tests.unit.engine.modeling.loader.published_shapes import DEEPSEEK_V3

_HERMES: Final = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
_CODER: Final = "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
_GLM: Final = "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>"
_LLAMA: Final = '{"name": "' + '", "parameters": ' + "<|python_tag|> Environment: ipython"
_DEEPSEEK: Final = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>```json"
_STATIC: Final = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}

MODELS: Final = (
    Row(1, "Qwen3", classes("Qwen3ForCausalLM"), True, _HERMES, ToolFormat.HERMES),
    Row(2, "Qwen3 with experts", classes("Qwen3MoeForCausalLM"), True, _HERMES, ToolFormat.HERMES),
    Row(
        3,
        "Qwen3-Coder",
        (*classes("Qwen3MoeForCausalLM"), *published("Qwen/Qwen3-Coder-30B-A3B-Instruct")),
        True,
        _CODER,
        ToolFormat.QWEN3_CODER,
    ),
    Row(4, "Qwen3-Next", classes("Qwen3NextForCausalLM"), False, _HERMES, ToolFormat.HERMES),
    Row(
        5,
        "Qwen3.5",
        (*classes("Qwen3_5ForConditionalGeneration"), *published("Qwen/Qwen3.5-9B-FP8, nested")),
        True,
        _CODER,
        ToolFormat.QWEN3_CODER,
    ),
    Row(
        6,
        "Qwen3.5 with experts",
        classes("Qwen3_5MoeForConditionalGeneration"),
        True,
        _CODER,
        ToolFormat.QWEN3_CODER,
    ),
    Row(
        7,
        "Qwen3.6, with NVIDIA's NVFP4",
        (
            *classes("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
            *published("nvidia/Qwen3.6-27B-NVFP4, by module"),
        ),
        True,
        _CODER,
        ToolFormat.QWEN3_CODER,
    ),
    Row(8, "Qwen3.8", classes("Qwen3_5ForConditionalGeneration"), True, _CODER, ToolFormat.QWEN3_CODER),
    Row(9, "Qwen4 preview", classes("Qwen4ExpForCausalLM")),
    Row(
        10,
        "Qwen2.5, QwQ; AWQ, GPTQ",
        (
            *classes("Qwen2ForCausalLM"),
            *published("Qwen/Qwen3-8B-AWQ", "hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4"),
        ),
        True,
        _HERMES,
        ToolFormat.HERMES,
    ),
    Row(11, "DeepSeek-R1-Distill", classes("Qwen2ForCausalLM", "LlamaForCausalLM")),
    Row(
        12,
        "DeepSeek-V3, R1, V3.1",
        (
            *classes("DeepseekV3ForCausalLM"),
            *published("deepseek-ai/DeepSeek-V3.1", "nvidia/DeepSeek-R1-FP4"),
        ),
        True,
        _DEEPSEEK,
        ToolFormat.DEEPSEEK_V3,
    ),
    Row(13, "DeepSeek-V3.2", classes("DeepseekV32ForCausalLM")),
    Row(14, "DeepSeek-V4", classes("DeepseekV4ForCausalLM"), True),
    Row(
        15,
        "Kimi K2",
        (OfConfig(DEEPSEEK_V3 | {"model_type": "kimi_k2"}),),
        False,
        "<|tool_calls_section_begin|>",
        ToolFormat.KIMI_K2,
    ),
    Row(
        16,
        "Kimi K2.5 to K2.7",
        classes("Kimi_K25ForConditionalGeneration"),
        True,
        "<|tool_calls_section_begin|>",
        ToolFormat.KIMI_K2,
    ),
    Row(17, "Kimi Linear, K3", classes("KimiLinearForCausalLM"), True),
    Row(
        18,
        "gpt-oss",
        (*classes("GptOssForCausalLM"), *published("openai/gpt-oss-20b")),
        True,
        "<|start|>assistant<|channel|>commentary to=functions",
        ToolFormat.HARMONY,
    ),
    Row(
        19,
        "GLM-4.5 to 4.7",
        (*classes("Glm4MoeForCausalLM"), *published("zai-org/GLM-4.5-Air", "zai-org/GLM-4.5-Air-FP8")),
        True,
        _GLM,
        ToolFormat.GLM,
    ),
    Row(20, "GLM-4.7-Flash", classes("Glm4MoeLiteForCausalLM"), False, _GLM, ToolFormat.GLM),
    Row(21, "GLM-5 to 5.2", classes("GlmMoeDsaForCausalLM"), True),
    Row(
        22,
        "MiniMax-M2 to M2.7",
        classes("MiniMaxM2ForCausalLM"),
        True,
        "<minimax:tool_call>",
        ToolFormat.MINIMAX_M2,
    ),
    Row(23, "MiniMax-M3", classes("MiniMaxM3SparseForConditionalGeneration"), True),
    Row(24, "MiMo-V2", classes("MiMoV2FlashForCausalLM"), True, _CODER, ToolFormat.QWEN3_CODER),
    Row(25, "Step-3.7", classes("Step3p7ForConditionalGeneration")),
    Row(
        26,
        "Hunyuan 3, A13B, dense",
        classes("HYV3ForCausalLM", "HunYuanMoEV1ForCausalLM", "HunYuanDenseV1ForCausalLM"),
    ),
    Row(
        27,
        "Llama 3.1 to 3.3",
        (*classes("LlamaForCausalLM"), *published("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8")),
        True,
        _LLAMA,
        ToolFormat.LLAMA_JSON,
    ),
    Row(28, "Llama 4", classes("Llama4ForConditionalGeneration")),
    Row(
        29,
        "Nemotron-Super 49B",
        (OfConfig({"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas"}),),
    ),
    Row(30, "Nemotron-3", classes("NemotronHForCausalLM"), True),
    Row(
        31,
        "Gemma 4",
        classes("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
        True,
        "<|tool_call>call:name{}<tool_call|>",
        ToolFormat.GEMMA4,
    ),
    Row(32, "Gemma 2, 3", classes("Gemma2ForCausalLM", "Gemma3ForConditionalGeneration"), True),
    Row(33, "Gemma 3n, DiffusionGemma", classes("Gemma3nForCausalLM", "DiffusionGemmaForBlockDiffusion")),
    Row(
        34,
        "Mistral 7B, Nemo, Small",
        classes("MistralForCausalLM"),
        False,
        "[TOOL_CALLS]",
        ToolFormat.MISTRAL,
    ),
    Row(
        35,
        "Mistral Small 3.1, 3.2",
        (
            *classes("Mistral3ForConditionalGeneration"),
            *published("RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-FP8-dynamic, nested"),
        ),
        False,
        "[TOOL_CALLS]",
        ToolFormat.MISTRAL,
    ),
    Row(
        36,
        "Ministral 3, FP8",
        (*classes("Ministral3ForCausalLM"), OfClass("Ministral3ForCausalLM", _STATIC)),
        False,
        "[TOOL_CALLS]",
        ToolFormat.MISTRAL,
    ),
    Row(
        37,
        "Devstral 2, FP8",
        (OfClass("Mistral3ForConditionalGeneration", _STATIC),),
        False,
        "[TOOL_CALLS]",
        ToolFormat.MISTRAL,
    ),
    Row(
        38,
        "Mistral Large 3, Small 4",
        classes("MistralLarge4ForConditionalGeneration", "Mistral4ForCausalLM"),
    ),
    Row(39, "Mixtral", classes("MixtralForCausalLM")),
    Row(40, "Phi-3, Phi-4", classes("Phi3ForCausalLM"), False, "<|/tool_call|>", ToolFormat.PHI4_MINI),
    Row(
        41,
        "SmolLM2, SmolLM3",
        classes("LlamaForCausalLM", "SmolLM3ForCausalLM"),
        False,
        _HERMES,
        ToolFormat.HERMES,
    ),
    Row(
        42,
        "OLMo 2, Olmo 3",
        classes("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
        False,
        "<function_calls>",
        ToolFormat.OLMO3,
    ),
    Row(43, "Granite 3", classes("GraniteForCausalLM"), False, "<|tool_call|>", ToolFormat.GRANITE),
    Row(44, "Granite 4", classes("GraniteMoeHybridForCausalLM")),
    Row(45, "LFM2", classes("Lfm2ForCausalLM"), False, "<|tool_call_start|>", ToolFormat.LFM2),
    Row(46, "Seed-OSS", classes("SeedOssForCausalLM"), False, "<seed:tool_call>", ToolFormat.SEED_OSS),
    Row(47, "ERNIE 4.5", classes("Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM")),
    Row(
        48,
        "EXAONE 4, 4.5, K-EXAONE",
        classes("Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration", "ExaoneMoeForCausalLM"),
    ),
    Row(49, "Command A, R7B", classes("Cohere2ForCausalLM")),
    Row(50, "Ling, Ring", classes("BailingHybridForCausalLM")),
    Row(
        51,
        "LongCat, Apertus, Trinity, Laguna, Mellum 2",
        classes(
            "LongcatFlashForCausalLM",
            "ApertusForCausalLM",
            "AfmoeForCausalLM",
            "LagunaForCausalLM",
            "MellumForCausalLM",
        ),
    ),
    Row(
        52,
        "Falcon-H1, Jamba, Zamba2, Bamba",
        classes("FalconH1ForCausalLM", "JambaForCausalLM", "Zamba2ForCausalLM", "BambaForCausalLM"),
    ),
    Row(
        53,
        "Phi-2, StarCoder2, GPT-NeoX, OPT, Gemma 1",
        classes(
            "PhiForCausalLM",
            "Starcoder2ForCausalLM",
            "GPTNeoXForCausalLM",
            "OPTForCausalLM",
            "GemmaForCausalLM",
        ),
    ),
    Row(54, "Qwen3Guard, Llama-Guard 3", classes("Qwen3ForCausalLM", "LlamaForCausalLM")),
    Row(55, "Qwen2.5-VL, as text", classes("Qwen2_5_VLForConditionalGeneration"), True),
    Row(
        56, "Qwen3-VL, as text", classes("Qwen3VLForConditionalGeneration"), True, _HERMES, ToolFormat.HERMES
    ),
    Row(
        57,
        "Qwen3-VL with experts, as text",
        classes("Qwen3VLMoeForConditionalGeneration"),
        True,
        _HERMES,
        ToolFormat.HERMES,
    ),
    Row(58, "InternVL, as text", classes("InternVLForConditionalGeneration")),
    Row(
        59,
        "SmolVLM, Idefics 3, as text",
        classes("SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration"),
    ),
    Row(60, "Pixtral, LLaVA, as text", classes("LlavaForConditionalGeneration")),
    Row(
        61,
        "GLM-4.5V, 4.6V, GLM-OCR, as text",
        classes(
            "Glm4vMoeForConditionalGeneration",
            "Glm46VForConditionalGeneration",
            "GlmOcrForConditionalGeneration",
        ),
    ),
    Row(
        62,
        "DeepSeek-OCR, PaddleOCR-VL, HunyuanOCR, as text",
        classes(
            "DeepseekOcr2ForConditionalGeneration",
            "PaddleOCRVLForConditionalGeneration",
            "HunYuanVLForConditionalGeneration",
        ),
    ),
    Row(
        63,
        "MiniCPM-V 4.6, Phi-4-multimodal, Molmo 2, as text",
        classes(
            "MiniCPMV4_6ForConditionalGeneration",
            "Phi4MultimodalForCausalLM",
            "Molmo2ForConditionalGeneration",
        ),
    ),
)
