"""Step times of a model on a GPU: measured for one model and GPU, scaled by a roofline for all others.

The steps of Llama-3.1-8B on an H200 are measured in 16 bits, FP8 and 4 bits (`simulator.device`). For another
model or GPU, the curve of matrix products in its format is scaled: in time by the time to read the weights,
in rows by the number of rows at which steps become compute-bound. The efficiency at each distance from that
ridge point is kept. Added is what Llama lacks: kernels of further norms, routing, and heads so wide that
attention reads them more slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from common.kv_groups import window_shares
from engine.kv.cache.slot_count import wanted_slots
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Norms
from engine.model_config.quantization import MX_BLOCK, WeightFormat
from router.placement import Reach
from simulator.device import H200_8B, H200_8B_FP8, H200_8B_INT4, H200_8B_MXFP4, DeviceCosts
from simulator.planner.hardware import H200, GpuModel
from simulator.simulation import NVLINK, LinkCosts

LLAMA_8B: Final = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=131_072,
    norm_eps=1e-5,
    rope=None,
    tied_embeddings=False,
    dtype="bfloat16",
)
"""The measured shape; rotation and context length have no effect."""

_BYTES: Final = 2
"""Bytes of a weight and of a KV value: bfloat16."""
_FP8_BYTES: Final = 1.0
_INT4_BYTES: Final = 0.5 + 3 / 128
"""Bytes per weight in 4 bits, with a scale and a zero point per 128."""
_MXFP4_BYTES: Final = 0.5 + 1 / MX_BLOCK
_KERNEL_S: Final = 3e-6
"""Time of a small kernel between others: most of it is its start and its end."""
_ROUTING_S: Final = 55e-6
"""Time to route a layer's experts for any number of decodes: measured on an H200 for 1, 16 and 64 tokens of
Qwen3-30B-A3B, less the time to read the weights."""
_WIDE_HEAD: Final = 128
_OF_WIDE_HEADS: Final = 1.9
"""How much longer it takes to read wider heads' KV: decodes of Qwen3.5-9B, with heads of 256 features, read
2.2 TB/s, where those of Llama read 4.2."""
_OF_LATENTS: Final = 1.3
"""The same of latents: 64 decodes of DeepSeek-V2-Lite read 3.1 TB/s."""
_MAX_RUNNING: Final = 512
_FEW_ROWS: Final = (2, 4, 8, 16, 32)
"""Rows at which experts are reached that fewer rows do not reach."""
_MEMORY_SHARE: Final = 0.9
_ACTIVATIONS: Final = 2e9
"""Bytes of each GPU for neither weights nor KV."""
_ALL_REDUCE_S: Final = 12e-6
"""Latency of an all-reduce of a few kilobytes between GPUs of one host."""


class Basis(Enum):
    MEASURED = "measured"
    """On this model's shape and this GPU."""
    ESTIMATED = "estimated"
    """Estimated by a roofline, from the measurement of another model or GPU."""


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """One worker of `ranks` GPUs."""

    device: DeviceCosts
    link: LinkCosts
    kv_tokens: int
    """Capacity of its KV pool; 0 or less: the weights do not fit."""
    max_running: int
    """Requests that it computes at a time."""
    state_slots: int
    """For the recurrent states of requests, and checkpoints; 0: the model has none."""
    basis: Basis


def costs_of(model: ModelSpec, gpu: GpuModel, ranks: int) -> WorkerCosts:
    """Costs of a worker with this many tensor-parallel ranks."""
    measured = (
        ranks == 1
        and gpu == H200
        and _format(model) in (None, WeightFormat.FP8_ROWS)
        and _shape(model) == _shape(LLAMA_8B)
        and not window_shares(model.kv_groups)
    )
    kv_bytes = kv_bytes_per_token(model)
    per_rank = kv_bytes * max(1, model.num_kv_heads // ranks) / model.num_kv_heads
    room = _MEMORY_SHARE * gpu.memory_bytes - weight_bytes(model) / ranks - _ACTIVATIONS
    slots = _state_slots(model, ranks, room)
    state_bytes = _state_bytes(model)
    room -= slots * state_bytes / ranks
    max_running = min(slots, _MAX_RUNNING) if state_bytes else _MAX_RUNNING
    link = LinkCosts(
        bytes_per_s=ranks * NVLINK.bytes_per_s * gpu.link_bytes_per_s / H200.link_bytes_per_s,
        latency_s=NVLINK.latency_s,
        kv_bytes_per_token=kv_bytes,
        state_bytes=state_bytes,
    )
    dense = _curve(model.bytes_per_dense_weight(_BYTES)).device
    device = dense if measured else _scaled(model, gpu, ranks, per_rank)
    basis = Basis.MEASURED if measured else Basis.ESTIMATED
    return WorkerCosts(device, link, int(room / per_rank), max_running, slots, basis)


def _state_slots(model: ModelSpec, ranks: int, room: float) -> int:
    """Slots for recurrent states, which take at most half of a rank's room; 0 for a model without them."""
    of_slot = _state_bytes(model) / ranks
    return min(wanted_slots(None, _MAX_RUNNING), int(max(room, 0.0) / 2 / of_slot)) if of_slot else 0


def _state_bytes(model: ModelSpec) -> int:
    """Size of a request's recurrent state, on all ranks together."""
    return 0 if model.recurrent is None else model.recurrent.state_bytes(_BYTES)


def kv_bytes_per_token(model: ModelSpec) -> int:
    return int(model.kv_token_bytes(_BYTES))


def weight_bytes(model: ModelSpec) -> float:
    """Bytes of all parameters except norms and biases."""
    return model.weight_bytes(_BYTES)


def _scaled(model: ModelSpec, gpu: GpuModel, ranks: int, kv_bytes: float) -> DeviceCosts:
    """`kv_bytes`: bytes of KV per token, on one rank."""
    arithmetic = (
        (len(model.attention_layers) * model.q_size) / (LLAMA_8B.num_layers * LLAMA_8B.q_size) / ranks
    )
    layers = model.num_layers / LLAMA_8B.num_layers
    wide = 1.0 if model.query_dim <= _WIDE_HEAD else _OF_WIDE_HEADS if model.latent is None else _OF_LATENTS
    slower = H200.bytes_per_s / gpu.bytes_per_s
    context = kv_bytes / kv_bytes_per_token(LLAMA_8B) * slower
    return DeviceCosts(
        matrices=tuple(
            (rows, seconds + _all_reduces(model, gpu, ranks, rows))
            for rows, seconds in _matrices(model, gpu, ranks)
        ),
        context=H200_8B.context * context * wide,
        reach=Reach(window_shares(model.kv_groups)),
        # Read and written once for each token, as fast as contexts are read.
        state=2 * _state_bytes(model) / ranks * H200_8B.context / kv_bytes_per_token(LLAMA_8B) * slower,
        pair=H200_8B.pair * arithmetic * H200.flops / gpu.flops,
        step=_curve(model.bytes_per_dense_weight(_BYTES)).device.step * layers + _further_kernels(model),
        prompts=H200_8B.prompts * layers,
        host=H200_8B.host,
        host_prompts=H200_8B.host_prompts,
    )


def _further_kernels(model: ModelSpec) -> float:
    """Seconds of a step's kernels that Llama does not have, which are as long for any number of decodes."""
    norms = (2 if model.norms is Norms.BOTH else 0) * model.num_layers
    norms += len(model.attention_layers) if model.qk_norm is not None else 0
    routed = 0 if model.experts is None else model.num_layers - len(model.experts.dense_layers)
    return _KERNEL_S * norms + _ROUTING_S * routed


def _all_reduces(model: ModelSpec, gpu: GpuModel, ranks: int, rows: int) -> float:
    """Seconds of the all-reduces of a step: two per layer."""
    if ranks == 1:
        return 0.0
    moved = rows * model.hidden_size * _BYTES * 2 * (ranks - 1) / ranks
    return 2 * model.num_layers * (_ALL_REDUCE_S + moved / gpu.link_bytes_per_s)


def _matrices(model: ModelSpec, gpu: GpuModel, ranks: int) -> Iterator[tuple[int, float]]:
    """Rows of a step, and seconds of its matrix products.

    Every matrix follows the measured curve of its format. An expert is a matrix with its share of the rows,
    and those that no row reaches are not read.
    """
    ridge = (gpu.flops / gpu.bytes_per_s) / (H200.flops / H200.bytes_per_s)
    slower = H200.bytes_per_s / gpu.bytes_per_s / LLAMA_8B.active_parameters / ranks
    of_dense = _curve(model.bytes_per_dense_weight(_BYTES))
    of_experts = _curve(model.bytes_per_weight(_BYTES), _format(model))
    experts, of_expert = model.experts, model.expert_parameters
    of_all = model.active_parameters - (0 if experts is None else experts.per_token * of_expert)
    knots = {rows for rows, _ in of_dense.device.matrices}
    if experts is not None:
        knots |= {*_FEW_ROWS, *(rows for rows, _ in of_experts.device.matrices)}
    for rows in sorted({max(1, round(knot * ridge)) for knot in knots}):
        knot = rows / ridge
        seconds = of_all * slower * of_dense.seconds(knot)
        if experts is not None:
            reached = experts.reached(rows)
            share = rows * experts.per_token / reached
            seconds += reached * of_expert * slower * of_experts.seconds(share / ridge)
        yield rows, seconds


@dataclass(frozen=True, slots=True)
class _Curve:
    """Matrix products of `LLAMA_8B` on an H200 in a format."""

    device: DeviceCosts
    size: float
    """Bytes of a weight, relative to those that were measured."""

    def seconds(self, rows: float) -> float:
        return self.size * self.device.of_matrices(rows)


def _format(model: ModelSpec) -> WeightFormat | None:
    return None if model.quantization is None else model.quantization.format


def _curve(weight_bytes: float, format: WeightFormat | None = None) -> _Curve:
    """In the format of weights that take `weight_bytes` each on a GPU."""
    if weight_bytes >= _BYTES:
        return _Curve(H200_8B, weight_bytes / _BYTES)
    if weight_bytes >= _FP8_BYTES:
        return _Curve(H200_8B_FP8, weight_bytes / _FP8_BYTES)
    if format is WeightFormat.MXFP4:
        return _Curve(H200_8B_MXFP4, weight_bytes / _MXFP4_BYTES)
    return _Curve(H200_8B_INT4, weight_bytes / _INT4_BYTES)


def _shape(model: ModelSpec) -> tuple[int, ...]:
    return (
        model.vocab_size,
        model.hidden_size,
        model.intermediate_size,
        model.num_layers,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        model.parameters,
    )
