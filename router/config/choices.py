"""Settings with a fixed set of values."""

from __future__ import annotations

from enum import Enum


class RunnerChoice(Enum):
    """What a model computes, by vLLM's names."""

    AUTO = "auto"
    GENERATE = "generate"
    POOLING = "pooling"


class Mode(Enum):
    MIXED = "mixed"
    """Every worker prefills in chunks and decodes."""
    DISAGG = "disagg"
    """Prefill workers compute prompts and send their KV to decode workers."""
    ADAPTIVE = "adaptive"
    """The router chooses the worker that computes the prompt and the one that decodes, for each request."""


class UpdateMode(Enum):
    """How the weights of several workers are replaced."""

    ROLLING = "rolling"
    """One worker after another, while the others serve."""
    TOGETHER = "together"
    """All at once, while requests wait."""


class Device(Enum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(Enum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class QuantizationChoice(Enum):
    """Quantization of an unquantized model's weights."""

    AUTO = "auto"
    FP8 = "fp8"


class KVCacheDtype(Enum):
    AUTO = "auto"
    FP8 = "fp8"


class TransportChoice(Enum):
    NIXL = "nixl"
    UCXX = "ucxx"
    LOOPBACK = "loopback"


class NodePlacement(Enum):
    """How Ray distributes workers over nodes."""

    PACK = "pack"
    """On as few nodes as possible: KV transfer is fastest within a node."""
    SPREAD = "spread"
    """On as many nodes as possible: a lost node takes few workers with it."""
    STRICT_SPREAD = "strict-spread"
    """Each on its own node, or not at all."""


class Routing(Enum):
    """How the router picks among workers of one role."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    POWER_OF_TWO = "power-of-two"
    PREFIX_AWARE = "prefix-aware"


class LogprobsMode(Enum):
    """Which distribution the log-probabilities of an answer are of."""

    RAW = "raw"
    """The model's own."""
    PROCESSED = "processed"
    """The one that tokens are sampled from."""


class GenerationConfig(Enum):
    """Defaults of sampling parameters that a request leaves out."""

    AUTO = "auto"
    """Values of the model's generation_config.json."""
    NONE = "none"
    """OpenAI's."""


class ToolCallParser(Enum):
    """The format of the model's tool calls."""

    AUTO = "auto"
    """As the chat template has it."""
    LLAMA_JSON = "llama3-json"
    HERMES = "hermes"
    """Also Qwen's."""
    MISTRAL = "mistral"
    HARMONY = "harmony"
    """gpt-oss's."""
    QWEN3_CODER = "qwen3-coder"
    """Also Qwen3.5's and later ones."""
    GLM = "glm45"
    """Also GLM-4.7's."""
    KIMI_K2 = "kimi-k2"
    DEEPSEEK_V3 = "deepseek-v3"
    DEEPSEEK_V31 = "deepseek-v31"
    MINIMAX_M2 = "minimax-m2"
    SEED_OSS = "seed-oss"
    GRANITE = "granite"
    HUNYUAN = "hunyuan"
    PHI4_MINI = "phi4-mini"
    PYTHONIC = "pythonic"
    """Llama 3.2's lists of calls."""
    LLAMA4_PYTHONIC = "llama4-pythonic"
    OLMO3 = "olmo3"
    LFM2 = "lfm2"
    FUNCTION_GEMMA = "functiongemma"
    GEMMA4 = "gemma4"
    HUNYUAN3 = "hunyuan3"
    LONGCAT = "longcat"
    LONGCAT_TAGS = "longcat-tags"
    COHERE = "cohere"
    APERTUS = "apertus"


class ReasoningParserChoice(Enum):
    """How reasoning is separated from the answer."""

    AUTO = "auto"
    """As the chat template has it."""
    NONE = "none"
    """Reasoning stays part of the answer."""
    THINK = "think"
    DEEPSEEK_R1 = "deepseek-r1"
    """Like think, for models that leave <think> out."""
    MISTRAL = "mistral"
    SEED_OSS = "seed-oss"
    GEMMA4 = "gemma4"
    COHERE = "cohere"
    APERTUS = "apertus"
    ERNIE = "ernie45"
    HUNYUAN = "hunyuan"
    HARMONY = "harmony"
    """gpt-oss's channels."""


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"
