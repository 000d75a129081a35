from engine.mixers.attention.base import AttentionBackend, GraphableAttention, PiecewiseAttention
from engine.mixers.attention.select import UnsupportedBackend, attention_for
from engine.mixers.attention.torch_backend import TorchAttention

__all__ = [
    "AttentionBackend",
    "GraphableAttention",
    "PiecewiseAttention",
    "TorchAttention",
    "UnsupportedBackend",
    "attention_for",
]
