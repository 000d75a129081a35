"""The small operations between a model's matrix products. Each is one call, so that a device can fuse it.

`Ops` is plain torch: it runs everywhere and is the oracle for its replacements. A backend subclasses it and
overrides the operations that it has a kernel for. Results may be written into the arguments, so callers must
not reuse them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.routing import Routes, route


class Rotation(Protocol):
    """Rotates queries and keys by their positions in a step; built once per step, for all layers."""

    def turn(self, heads: Tensor) -> Tensor:
        """Rotate each pair (feature i, feature i + D/2) of `heads` [T, H, D] by its token's angle."""


@dataclass(frozen=True, slots=True)
class _Angles:
    cos: Tensor
    """[T, 1, head_dim], the model's dtype: the cosine of each feature's angle."""
    sin: Tensor
    """[T, 1, head_dim]: the sine, negated in the first half, where the rotation subtracts."""

    def turn(self, heads: Tensor) -> Tensor:
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return torch.addcmul(heads * self.cos, swapped, self.sin)


class Ops:
    """T is the number of tokens in the step, P that of pairs of a token and one of its experts, d the hidden
    size, I the MLP's, D the size of a head."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x` [..., n] scaled to unit mean square over its last dimension, times `weight` [n]."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), both [T, d]."""
        residual = residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """The activation of `gate_up` [T, 2I], gate first, or [T, I] without a gate: [T, I]."""
        if activation is Activation.SQUARED_RELU:
            return gate_up.relu_().square_()
        gate, up = gate_up.chunk(2, dim=-1)
        match activation:
            case Activation.SILU:
                return functional.silu(gate).mul_(up)
            case Activation.GELU:
                return functional.gelu(gate, approximate="tanh").mul_(up)
            case _:
                assert activation is Activation.CLAMPED
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                return (gate * 1.702).sigmoid_().mul_(gate).mul_(up + 1.0)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU in the tanh approximation, with which GPT-2 was trained."""
        return functional.gelu(x, approximate="tanh")

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def norm_heads(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        """Normalise each of `heads` [T, H, D], a slice of a larger tensor, in place."""
        heads.copy_(self.rms_norm(heads, weight, eps))

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
        """Queries, and the latent of each token as it is stored: [T, H + 1, rank + R].

        From `absorbed` [T, H, rank] and `queries` [T, H, R], which are still to be rotated, and from
        `latents` [T, rank + R], of which the first part is still to be normalised and the rest rotated.
        `rotation`: None: nothing is rotated. `interleaved`: the pairs that are rotated together are
        neighbours; afterwards they are R / 2 apart.
        """
        rank = absorbed.shape[2]
        normed = self.rms_norm(latents[:, :rank].contiguous(), weight, eps)
        rotated = torch.cat((queries, latents[:, None, rank:]), dim=1)
        if interleaved:
            rotated = rotated.view(*rotated.shape[:2], -1, 2).transpose(2, 3).flatten(2)
        if rotation is not None:
            rotated = rotation.turn(rotated.contiguous())
        return torch.cat((torch.cat((absorbed, normed[:, None]), dim=1), rotated), dim=2)

    def delta_rates(self, rates: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        """Decays and learning rates of a delta net, from `rates` [T, 2H], learning rates first: the
        logarithms of how much of its state each head keeps at a token, at most 0, and its learning rates,
        both [T, H] float32.
        """
        beta, decay = rates.float().chunk(2, dim=1)
        return -a_log.exp() * functional.softplus(decay + dt_bias), beta.sigmoid()

    def gated_norm(self, heads: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`rms_norm` of each of `heads` [T, H, D], times SiLU of `gate`."""
        normed = self.rms_norm(heads, weight, eps)
        return (normed * functional.silu(gate.float())).to(heads.dtype)

    def route(
        self, logits: Tensor, bias: Tensor | None, spec: ExpertSpec, live: Tensor, totals: Tensor
    ) -> Routes:
        """`routing.route`. `live` [1]: how many rows of `logits` are tokens; the rest is padding.

        The tokens of each expert are added to `totals` [E] int64; here not in a CUDA graph, whose padding has
        routes as well.
        """
        routes = route(logits, bias, spec, self.sigmoid)
        if not (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            totals += routes.starts.diff()
        return routes

    def weighted_sum(self, outputs: Tensor, routes: Routes) -> Tensor:
        """The weighted sum of the outputs of each token's experts: [P, d], ordered as the routes, -> [T, d].

        Summed in float32, in the order of the token's choice.
        """
        places = routes.places
        chosen = outputs[places.flatten()].view(*places.shape, -1).float() * routes.weights.unsqueeze(2)
        return chosen.masked_fill_((places < 0).unsqueeze(2), 0.0).sum(dim=1).to(outputs.dtype)

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Look up the angles of `positions` [T] in a `rope_table`."""
        cos, sin = table[positions].unsqueeze(1).to(dtype).chunk(2, dim=-1)
        return _Angles(cos=torch.cat((cos, cos), dim=-1), sin=torch.cat((-sin, sin), dim=-1))
