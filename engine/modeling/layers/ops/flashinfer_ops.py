"""The small operations on NVIDIA GPUs: each is one fused kernel, flashinfer's or ours, on 16-bit tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashinfer.norm import rmsnorm
from torch import Tensor

from engine.kernels.add_norm import add_norm
from engine.kernels.attention.latent_rows import latent_rows
from engine.kernels.delta_net.delta_gates import delta_rates, gated_norm
from engine.kernels.experts.routing import route_tokens
from engine.kernels.experts.weighted_sum import weighted_sum
from engine.kernels.gate import gate
from engine.model_config.parts.expert_spec import ExpertSpec, Scoring
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.ops.ops import Ops, Rotation
from engine.modeling.layers.routing import Routes, scores_of


@dataclass(frozen=True, slots=True)
class Positions:
    """Table and positions of a step, for kernels that look up the angles themselves. A `Rotation`."""

    table: Tensor
    """From `rope_table`."""
    positions: Tensor
    """[T]"""

    def turn(self, heads: Tensor) -> Tensor:
        """Where attention runs in plain torch: other backends rotate in kernels of their own."""
        turned = Ops().rotation(self.table, self.positions, torch.float32).turn(heads.float())
        return turned.to(heads.dtype)


class FlashInferOps(Ops):
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed: Tensor = rmsnorm(x, weight, eps)
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        add_norm(x, residual, weight, eps)
        return x, residual

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if activation is Activation.SQUARED_RELU:
            return super().gate(gate_up, activation)
        return gate(gate_up, activation)

    def norm_heads(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        rmsnorm(heads, weight, eps, out=heads)

    def latent_rows(
        self,
        absorbed: Tensor,
        queries: Tensor,
        latents: Tensor,
        weight: Tensor,
        eps: float,
        rotation: Rotation | None,
        *,
        interleaved: bool,
    ) -> Tensor:
        if rotation is None:
            return super().latent_rows(
                absorbed, queries, latents, weight, eps, rotation, interleaved=interleaved
            )
        assert isinstance(rotation, Positions)
        angles = rotation.table, rotation.positions
        return latent_rows(absorbed, queries, latents, weight, eps, *angles, interleaved=interleaved)

    def delta_rates(self, rates: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        return delta_rates(rates, a_log, dt_bias)

    def gated_norm(self, heads: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        return gated_norm(heads, gate, weight, eps)

    def route(
        self, logits: Tensor, bias: Tensor | None, spec: ExpertSpec, live: Tensor, totals: Tensor
    ) -> Routes:
        eligible = scores_of(logits, bias, spec)[1].contiguous() if spec.groups > 1 else None
        routing = route_tokens(
            logits,
            bias,
            eligible,
            live,
            totals,
            per_token=spec.per_token,
            sigmoid=spec.scoring is Scoring.SIGMOID,
            normalized=spec.normalized,
            scale=spec.scale,
        )
        return Routes(routing.weights, routing.order, routing.starts, routing.places)

    def weighted_sum(self, outputs: Tensor, routes: Routes) -> Tensor:
        return weighted_sum(outputs, routes.places, routes.weights)

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return Positions(table, positions)
