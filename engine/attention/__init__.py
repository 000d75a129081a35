from engine.attention.base import AttentionBackend, GraphableAttention
from engine.attention.select import UnsupportedBackend, attention_for
from engine.attention.torch_backend import TorchAttention

__all__ = ["AttentionBackend", "GraphableAttention", "TorchAttention", "UnsupportedBackend", "attention_for"]
