"""What `--reproducible` can be used with."""

from __future__ import annotations

from collections.abc import Iterator

from engine.model_config.model_spec import ModelSpec
from router.config.choices import QuantizationChoice
from router.config.settings import RouterConfig


def obstacles(config: RouterConfig, spec: ModelSpec, device: str, ranks: int) -> list[str]:
    """Why logits would depend on what else is computed; empty: they do not."""
    return list(_obstacles(config, spec, device, ranks))


def _obstacles(config: RouterConfig, spec: ModelSpec, device: str, ranks: int) -> Iterator[str]:
    if device != "cpu":
        yield "kernels of GPUs sum in an order that depends on the batch"
    if spec.dtype == "float16":
        yield "there are no kernels for float16"
    if spec.quantization is not None or config.quantization is not QuantizationChoice.AUTO:
        yield "weights are quantized"
    if ranks > 1:
        yield "several ranks add their results"
    if config.adapters.engine is not None:
        yield "products of LoRA adapters depend on the batch"
    kinds = {
        "experts": spec.experts,
        "latent attention": spec.latent,
        "recurrent layers": spec.delta,
        "embeddings by layer": spec.per_layer,
        "transformers' own modules": spec.general,
        "an encoder": spec.encoder,
        "images": spec.vision,
    }
    for name, kind in kinds.items():
        if kind is not None:
            yield f"the model has {name}"
    if any(spec.attention.windows):
        yield "the model has windows, whose pages are released at times that depend on the batch"
    if spec.attention.bidirectional:
        yield "the model attends in both directions"
