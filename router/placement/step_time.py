"""A model of engine step times, fitted online to the steps that a worker reports."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

_FORGET: Final = 0.998
"""Weight of a step relative to the next one."""
_OUTLIER: Final = 3.0
"""Residuals are clipped at this multiple of their usual size: stalls are not a property of the device."""
_SCALE_SPREAD: Final = 10.0
"""Prior deviation of the common scale of all coefficients, in units of the prior: devices differ in speed."""
_SHAPE_SPREAD: Final = 0.3
"""Prior deviation of each individual coefficient."""
_NOISE: Final = 0.05
"""Relative deviation of one step, which determines the weight of the prior."""
_LARGEST_COVARIANCE: Final = 1e4
_SHORTEST_S: Final = 1e-6
_LONGEST_S: Final = 1e3


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step."""

    prompt_tokens: int = 0
    attention: float = 0.0
    """Pairs of a prompt token and one that it attends to."""
    decodes: float = 0
    """Rows: one of each answer, and one for each drafted token."""
    context_tokens: float = 0.0
    """Context tokens of all these rows together."""

    @staticmethod
    def attention_of(start: int, length: int) -> float:
        """Pairs of a chunk of `length` tokens that follow `start` others."""
        return length * (start + length / 2)


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a step computes and yields for each answer; more than 1 if drafts are verified."""

    rows: float = 1.0
    tokens: float = 1.0


NO_DRAFTS: Final = Drafting()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients of the time of a step: a fixed part, matrices, attention of decodes and of prompts.

    Matrices take the longer of reading the weights and computing the step's rows. The defaults are those of
    an 8B model on a GPU with 4 TB/s.
    """

    step: float = 1e-3
    weights: float = 4e-3
    row: float = 20e-6
    decode: float = 5e-6
    context: float = 30e-9
    prompts: float = 1e-3
    """Fixed cost of a step with prompt tokens."""
    pair: float = 1e-9

    def seconds(self, work: StepWork) -> float:
        matrices = max(self.weights, self.row * (work.prompt_tokens + work.decodes))
        decodes = self.decode * work.decodes + self.context * work.context_tokens
        prompts = self.prompts + self.pair * work.attention if work.prompt_tokens else 0.0
        return self.step + matrices + decodes + prompts

    def scaled(self, factor: float) -> StepTime:
        """Step time of a device on which everything takes `factor` times as long."""
        if factor == 1.0:
            return self
        return StepTime(*(factor * getattr(self, field.name) for field in fields(self)))

    def prompt_tokens_within(
        self, seconds: float, decodes: float, context_tokens: float, pairs_per_token: float = 0.0
    ) -> float:
        """Prompt tokens with which a step takes `seconds` beside these decodes.

        0 if it takes longer without any.
        """
        left = seconds - self.step - self.prompts - self.decode * decodes - self.context * context_tokens
        per_pair = self.pair * pairs_per_token
        if left < self.weights:
            return 0.0
        # If the step is compute-bound; if it is bound by reading weights, tokens cost only attention.
        unbound = (left - self.row * decodes) / (self.row + per_pair)
        if self.row * (unbound + decodes) >= self.weights or per_pair == 0.0:
            return max(0.0, unbound)
        return max(0.0, min((left - self.weights) / per_pair, self.weights / self.row - decodes))


PRIOR: Final = StepTime()


class StepTimeFit:
    """Recursive least squares over `StepTime`'s coefficients, in units of a prior.

    The prior's scale is more uncertain than its shape: the first observed steps determine the speed of the
    device, later ones the cost of each kind of work. Coefficients never fall below 1% of their scaled prior,
    and outliers are clipped. Whether reading weights or arithmetic bounds a step is decided with the current
    coefficients. O(1) per observation.
    """

    def __init__(self, prior: StepTime = PRIOR) -> None:
        self.prior = prior
        units = (
            self.prior.step,
            self.prior.weights,
            self.prior.row,
            self.prior.decode,
            self.prior.context,
            self.prior.prompts,
            self.prior.pair,
        )
        self._units = units
        size = len(units)
        self._theta = [1.0] * size
        self._cov = [
            [_SCALE_SPREAD**2 + (_SHAPE_SPREAD**2 if i == j else 0.0) for j in range(size)]
            for i in range(size)
        ]
        self._error = _NOISE
        """Typical relative residual."""
        self._observed = 0
        self.model = self.prior

    def observe(self, work: StepWork, seconds: float) -> None:
        """Add the measured time of a step that computed `work`. Ignores impossible times."""
        if not _SHORTEST_S <= seconds <= _LONGEST_S or not (work.prompt_tokens or work.decodes):
            return
        rows = work.prompt_tokens + work.decodes
        bound = self.model.row * rows > self.model.weights
        prompts = work.prompt_tokens > 0
        amounts = (
            1.0,
            0.0 if bound else 1.0,
            float(rows) if bound else 0.0,
            float(work.decodes),
            work.context_tokens,
            1.0 if prompts else 0.0,
            work.attention if prompts else 0.0,
        )
        # Divided by the measured time, so that relative errors of long and short steps count equally.
        x = [amount * unit / seconds for amount, unit in zip(amounts, self._units, strict=True)]
        error = 1.0 - sum(a * b for a, b in zip(x, self._theta, strict=True))
        self._observed += 1
        if self._observed > 1:
            limit = _OUTLIER * max(self._error, _NOISE / 5)
            self._error += 0.05 * (min(abs(error), 2 * limit) - self._error)
            error = min(max(error, -limit), limit)
        self._update(x, error)
        self.model = self._as_model()

    def _update(self, x: list[float], error: float) -> None:
        cov, theta = self._cov, self._theta
        px = [sum(a * b for a, b in zip(row, x, strict=True)) for row in cov]
        denominator = _NOISE**2 + sum(a * b for a, b in zip(px, x, strict=True))
        gain = [p / denominator for p in px]
        for i, g in enumerate(gain):
            theta[i] += g * error
            row = cov[i]
            for j, p in enumerate(px):
                row[j] = (row[j] - g * p) / _FORGET
            if row[i] > _LARGEST_COVARIANCE:  # work of a kind not seen for long: keep its coefficient
                shrink = (_LARGEST_COVARIANCE / row[i]) ** 0.5
                for j in range(len(theta)):
                    row[j] *= shrink
                    cov[j][i] *= shrink

    def _as_model(self) -> StepTime:
        scale = sorted(self._theta)[len(self._theta) // 2]
        floor = max(0.01 * scale, 1e-6)
        for index, value in enumerate(self._theta):
            self._theta[index] = max(value, floor)
        return StepTime(*(t * u for t, u in zip(self._theta, self._units, strict=True)))


@dataclass(frozen=True, slots=True)
class Reach:
    """Windows in tokens, each with the share of the layers with attention that have it; the others have none.

    Layers with a recurrent state read as much whatever the context: their time is one of rows.
    """

    windows: tuple[tuple[int, float], ...] = ()

    def of(self, tokens: float, rows: float) -> float:
        """Tokens that a layer attends to, averaged over layers, for `rows` rows with `tokens` before them
        together. Rows are taken as equally long: an upper bound where they differ.
        """
        return tokens - sum(share * max(0.0, tokens - rows * window) for window, share in self.windows)

    def of_step(self, work: StepWork) -> StepWork:
        """`work` with the tokens that attention reads."""
        if not self.windows:
            return work
        return replace(
            work,
            attention=self.of(work.attention, work.prompt_tokens),
            context_tokens=self.of(work.context_tokens, work.decodes),
        )


EVERYTHING = Reach()
