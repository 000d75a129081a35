"""How far back a model's layers attend."""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.placement.step_time import StepWork


@dataclass(frozen=True, slots=True)
class Reach:
    """Windows in tokens, each with the share of the layers with attention that have it; the others have none.

    Layers with a recurrent state read as much whatever the context: their time is one of rows.
    """

    windows: tuple[tuple[int, float], ...] = ()

    def of(self, tokens: float, rows: float) -> float:
        """Of `tokens` before `rows` rows together, those that a layer attends to, averaged over layers.

        As if each row had as many before it: an upper bound where their numbers differ.
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
