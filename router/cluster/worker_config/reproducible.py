"""What `--reproducible` can be used with."""

from __future__ import annotations

from collections.abc import Iterator

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Head, QKNorm
from engine.speculation.kinds import Speculation
from router.config.choices import KVCacheDtype
from router.config.settings import RouterConfig


def obstacles(spec: ModelSpec, device: str, ranks: int) -> list[str]:
    """Why logits would depend on what else is computed; empty: they do not."""
    return list(_obstacles(spec, device, ranks))


def gpu_obstacles(config: RouterConfig, spec: ModelSpec, dtype: str) -> list[str]:
    """The same of what has uniform kernels on CPUs alone. `dtype`: of the activations."""
    return list(_gpu_obstacles(config, spec, dtype))


def _obstacles(spec: ModelSpec, device: str, ranks: int) -> Iterator[str]:
    if spec.dtype == "float16" and device == "cpu":
        yield "there are no kernels for float16"
    if ranks > 1:
        yield "several ranks (--tensor-parallel-size) add their results"
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


def _gpu_obstacles(config: RouterConfig, spec: ModelSpec, dtype: str) -> Iterator[str]:
    if dtype != "bfloat16":
        yield f"on GPUs there are no tested kernels for {dtype}; use --dtype bfloat16"
    if spec.quantization is not None:
        yield "on GPUs there are no kernels for quantized weights; use a checkpoint in bfloat16"
    if config.kv_cache_dtype is KVCacheDtype.FP8:
        yield "on GPUs there are no kernels for --kv-cache-dtype fp8; leave it out"
    if config.adapters.engine is not None:
        yield "on GPUs there are no kernels for --enable-lora; leave it out"
    attention = spec.attention
    if attention.sinks or attention.soft_cap is not None or any(map(spec.window, range(spec.num_layers))):
        yield "on GPUs windows, sinks and soft caps of attention are not tested"
    scheduling = config.scheduling
    if scheduling.speculative_model is not None or scheduling.effective_speculative is Speculation.MTP:
        yield "on GPUs drafts of a model or a head are not tested; use --speculative ngram, suffix or off"
    if spec.head is not Head.VOCABULARY:
        yield "on GPUs it is for models that generate text"
    if spec.qk_norm is QKNorm.ALL_HEADS or (spec.experts is not None and spec.experts.beside_mlp):
        yield "the model has norms that torch computes, in an order that depends on the number of rows"
