"""Experts in place of an MLP: each token is computed by a few of them, which a router chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod, Slot, weight
from engine.modeling.layers.linear.packable import Packable
from engine.modeling.layers.linear.panels import PackedMatrix, wanted_panels
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.routing import Routes
from engine.parallel.communicator import Communicator


class LiveRows:
    """How many of a step's rows are tokens; those after them pad a CUDA graph and go to no expert."""

    def __init__(self) -> None:
        self.count = torch.zeros(1, dtype=torch.int32)
        """[1], on the device: graphs read it when they are replayed."""

    def expect(self, rows: int) -> None:
        self.count.fill_(rows)


class ExpertRouter(Packable):
    """Scores in float32 whatever the model's dtype: a rounded score may choose another expert."""

    def __init__(self, features: int, spec: ExpertSpec, ops: Ops, live: LiveRows) -> None:
        super().__init__()
        self.weight = weight(spec.count, features, dtype=torch.float32)
        self.bias = weight(spec.count, dtype=torch.float32) if spec.bias else None
        self.e_score_correction_bias = weight(spec.count, dtype=torch.float32) if spec.score_bias else None
        self._dtype = torch.get_default_dtype()
        self._rounded: Tensor | None = None
        """The weight in the activations' dtype, where that loses nothing and products add up in float32."""
        self._panels: PackedMatrix | None = None
        """The weight, if the scores of a row must not depend on the others."""
        self.counts = torch.zeros(spec.count, dtype=torch.int64)
        """Tokens of each expert so far."""
        self.record: Tensor | None = None
        """[rows, k]: where it writes the experts of each row; None: nowhere."""
        self._spec = spec
        self._ops = ops
        self._live = live

    def pack(self) -> None:
        """Keep 16-bit weights, as most checkpoints have them: 32-bit products take 2 to 10 times as long."""
        rounded = self.weight.detach().to(self._dtype)
        if rounded.is_cuda and self._dtype != torch.float32 and torch.equal(rounded.float(), self.weight):
            self._rounded = rounded
        exact = self.weight.detach() if self._rounded is None else self._rounded
        self._panels = wanted_panels(exact, torch.float32)

    def unpacked(self) -> ExpertRouter:
        return ExpertRouter(self.weight.shape[1], self._spec, self._ops, self._live)

    def packed(self) -> object:
        panels = None if self._panels is None else self._panels.memory
        return dict(self.named_parameters(recurse=False)), self._rounded, panels

    def _logits(self, x: Tensor) -> Tensor:
        """[T, d] -> [T, E] float32"""
        if self._panels is not None:
            return self._panels.product(x.to(self._panels.memory.dtype).contiguous(), self.bias)
        if self._rounded is None:
            return functional.linear(x.float(), self.weight, self.bias)
        logits = torch.mm(x, self._rounded.t(), out_dtype=torch.float32)
        return logits if self.bias is None else logits + self.bias

    def forward(self, x: Tensor) -> Routes:
        """x [T, d] -> the experts of each row, of those that this rank holds."""
        logits = self._logits(x)
        routes = self._weighed(
            self._ops.route(logits, self.e_score_correction_bias, self._spec, self._live.count, self.counts)
        )
        if self.record is not None:
            self.record[: len(x)] = routes.chosen
        return routes if self._spec.parallel == 1 else routes.only(self._spec.held)

    def _weighed(self, routes: Routes) -> Routes:
        """The routes of all experts with their final weights."""
        return routes


class RouterScales(nn.Module):
    """What a router's inputs are multiplied with, by feature, and the weights of its experts."""

    def __init__(self, features: int, experts: int) -> None:
        super().__init__()
        self.scale = weight(features)
        self.per_expert_scale = weight(experts, dtype=torch.float32)


class ScaledRouter(ExpertRouter):
    """Gemma 4: inputs are normalised and scaled, and so are the weights of experts."""

    def __init__(self, features: int, spec: ExpertSpec, ops: Ops, live: LiveRows, *, eps: float) -> None:
        super().__init__(features, spec, ops, live)
        self.scales = RouterScales(features, spec.count)
        self._eps = eps

    def unpacked(self) -> ExpertRouter:
        return ScaledRouter(self.weight.shape[1], self._spec, self._ops, self._live, eps=self._eps)

    def forward(self, x: Tensor) -> Routes:
        normed = functional.rms_norm(x, x.shape[1:], eps=self._eps)
        return super().forward(normed * self.scales.scale * x.shape[1] ** -0.5)

    def _weighed(self, routes: Routes) -> Routes:
        return replace(routes, weights=routes.weights * self.scales.per_expert_scale[routes.chosen])


class ExpertStack(Packable):
    """The same matrix of every expert that a rank holds: rows ordered by expert, [P, in] -> [P, out]."""

    def __init__(
        self,
        spec: ExpertSpec,
        in_features: int,
        out_features: int,
        method: LinearMethod,
        *,
        adds_bias: bool = True,
    ) -> None:
        """`adds_bias`: false on ranks whose products are added to those of a rank that adds it."""
        super().__init__()
        self._spec = spec
        self._sizes = in_features, out_features
        self.method = method
        method.create(self, in_features, out_features, stack=(len(spec.held),))
        self.bias = weight(len(spec.held), out_features) if spec.bias else None
        self._adds_bias = adds_bias
        self._product: Callable[[Tensor, Routes, bool], Tensor] | None = None

    def forward(self, x: Tensor, routes: Routes, *, by_token: bool = False) -> Tensor:
        """`by_token`: the rows of `x` are tokens, and each is multiplied once for each of its experts."""
        assert self._product is not None, "a stack multiplies once it is packed"
        product = self._product(x, routes, by_token)
        return (
            product if self.bias is None or not self._adds_bias else product.add_(self.bias[routes.experts])
        )

    def slots(self) -> list[Slot]:
        """The tensors that a checkpoint holds for each expert, and what all experts' fill."""
        biases = [] if self.bias is None else [Slot("bias", self.bias)]
        return self.method.slots(self) + biases

    def pack(self) -> None:
        self._product = self.method.pack_stack(self)

    def unpacked(self) -> ExpertStack:
        return ExpertStack(self._spec, *self._sizes, self.method)

    def packed(self) -> object:
        return dict(self.named_parameters(recurse=False)), self._product


class LatentProjections(nn.Module):
    """Projections from the hidden state to what experts compute with, and back. Every rank has both whole."""

    def __init__(self, into: Linear, back: Linear) -> None:
        super().__init__()
        self.into = into
        self.back = back


class ExpertMLP(nn.Module):
    """x [T, d] -> the weighted sum of the outputs of each token's experts, [T, d]."""

    def __init__(
        self,
        router: ExpertRouter,
        gate_up: ExpertStack,
        down: ExpertStack,
        latent: LatentProjections | None,
        shared: nn.Module | None,
        shared_gate: Linear | None,
        activation: Activation,
        ops: Ops,
        communicator: Communicator,
    ) -> None:
        """`shared`: this rank's part of an MLP that computes every token; its output is not yet summed."""
        super().__init__()
        self.router = router
        self.gate_up = gate_up
        self.down = down
        self.latent = latent
        self.shared = shared
        self.shared_gate = shared_gate
        self._activation = activation
        self._ops = ops
        self._communicator = communicator

    def forward(self, x: Tensor, routed_by: Tensor | None = None) -> Tensor:
        """`routed_by`: what the router sees instead of `x`."""
        routes: Routes = self.router(x if routed_by is None else routed_by)
        given = x if self.latent is None else self.latent.into(x)
        inner = self._ops.gate(self.gate_up(given, routes, by_token=True), self._activation)
        output = self._ops.weighted_sum(self.down(inner, routes), routes)
        if self.latent is not None:  # of this rank's part: the projection of a sum is the sum of projections
            output = self.latent.back(output)
        if self.shared is not None:
            output = output + self._shared_part(x, self.shared)
        return self._communicator.all_reduce(output)

    def _shared_part(self, x: Tensor, shared: nn.Module) -> Tensor:
        # The gate first: the MLP may write into its argument.
        gate = None if self.shared_gate is None else self._ops.sigmoid(self.shared_gate(x))
        part: Tensor = shared(x)
        return part if gate is None else part * gate
