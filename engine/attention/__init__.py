from engine.attention.base import AttentionBackend, GraphableAttention, PiecewiseAttention
from engine.attention.select import UnsupportedBackend, attention_for
from engine.attention.torch_backend import TorchAttention

__all__ = [
    "AttentionBackend",
    "GraphableAttention",
    "PiecewiseAttention",
    "TorchAttention",
    "UnsupportedBackend",
    "attention_for",
]
