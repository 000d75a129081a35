"""What `--reproducible` can be used with."""

from __future__ import annotations

from collections.abc import Iterator

from engine.model_config.model_spec import ModelSpec


def obstacles(spec: ModelSpec, device: str, ranks: int) -> list[str]:
    """Why logits would depend on what else is computed; empty: they do not."""
    return list(_obstacles(spec, device, ranks))


def _obstacles(spec: ModelSpec, device: str, ranks: int) -> Iterator[str]:
    if device != "cpu":
        yield "kernels of GPUs sum in an order that depends on the batch"
    if spec.dtype == "float16":
        yield "there are no kernels for float16"
    if ranks > 1:
        yield "several ranks add their results"
    kinds = {
        "latent attention": spec.latent,
        "recurrent layers": spec.recurrent,
        "embeddings by layer": spec.per_layer,
        "transformers' own modules": spec.general,
        "an encoder": spec.encoder,
        "images": spec.vision,
    }
    for name, kind in kinds.items():
        if kind is not None:
            yield f"the model has {name}"
    if spec.attention.bidirectional:
        yield "the model attends in both directions"
