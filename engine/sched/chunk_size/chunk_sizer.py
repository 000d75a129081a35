"""The prompts' share of a step: token budget beside decodes, limits per prompt, and the ITL target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.config import SchedulerConfig
from engine.sched.chunk_size.itl_controller import SMALLEST, ITLController, PromptCost, whole_tiles
from engine.sched.chunk_size.token_budget import PrefillLimits, Progress, StepRoom, without_long_chunks
from engine.sched.chunk_size.tpot_controller import TPOTController
from engine.sched.output_lengths import OutputLengths


class ChunkSizer:
    """Sizes chunks from the progress of prompts."""

    def __init__(self, config: SchedulerConfig, page_size: int, context: int, lengths: OutputLengths) -> None:
        self.itl_controller = (
            None
            if config.itl_target_s is None or config.chunk_budget is None or not config.chunked_prefill
            else ITLController(config.itl_target_s, config.chunk_budget)
        )
        self.tpot_controller = (
            None
            if config.tpot_target_s is None or config.pause_s is None or config.chunk_budget is None
            else TPOTController(config.tpot_target_s, config.pause_s, config.chunk_budget, lengths)
        )
        self._config = config
        self._page_size = page_size
        unit, longest = page_size if config.page_aligned_chunks else 1, config.longest_chunk(context)
        self._limits = PrefillLimits(
            largest=config.prefill_limit(context),
            unit=unit,
            longest_chunk=None if longest is None else max(longest, unit),  # else no chunk ends a page
            chunked=config.chunked_prefill,
            first_may_exceed=config.chunk_budget is None and config.max_prefill_tokens is not None,
            max_partial=config.max_partial_prefills,
            max_long_partial=config.max_long_partial_prefills,
        )
        self._cost = PromptCost(config.costly_context)

    @property
    def budget(self) -> int | None:
        """Largest cost of a step's prompt tokens beside decodes; None without a step-time target."""
        controller = self.tpot_controller or self.itl_controller
        return None if controller is None else controller.budget

    @property
    def usual_budget(self) -> int | None:
        """`budget` of a step that may carry prompts."""
        controller = self.tpot_controller or self.itl_controller
        return None if controller is None else controller.usual_budget

    @property
    def largest(self) -> int:
        """Tokens of a step."""
        return self._config.chunk_budget or self._limits.largest

    @property
    def largest_prompt(self) -> float:
        """Tokens of the longest prompt that the scheduler can compute."""
        limits = self._limits
        return math.inf if limits.chunked or limits.first_may_exceed else limits.largest

    def room(self, num_decodes: int, num_prompts: int) -> StepRoom:
        """Tokens of a step that this many decodes leave to prompts."""
        tokens = self._tokens(num_decodes)
        budget = self.budget
        if budget is not None and num_decodes:
            tokens = max(min(tokens, budget), self._page_size) if budget else 0
        return self._room(tokens, num_prompts)

    def lengths(self, prompts: Sequence[Progress], num_decodes: int) -> list[int]:
        """Tokens of each prompt to compute beside this many decodes; prompts in order of service."""
        room = self.room(num_decodes, len(prompts))
        allowed = room.left
        lengths = [room.grant(prompt) for prompt in prompts]
        budget = self.budget
        if budget is None or not num_decodes or not self._limits.chunked or not any(lengths):
            return lengths
        allowed, lengths = self._paced(budget, prompts, lengths, num_decodes, allowed)
        return without_long_chunks(prompts, lengths, allowed) if self._config.hold_long_chunks else lengths

    def _paced(
        self, budget: int, prompts: Sequence[Progress], lengths: list[int], num_decodes: int, allowed: int
    ) -> tuple[int, list[int]]:
        """Fewer tokens where their context makes them cost more than the budget allows; in whole tiles."""
        tokens = allowed
        cost = sum(self._cost.of(p.computed, length) for p, length in zip(prompts, lengths, strict=True))
        if cost > budget:
            tokens = int(sum(lengths) * budget / cost)
        if sum(prompt.pending for prompt in prompts) > tokens:
            # Rounded down below the smallest budget, chunks would never show how little more tokens cost.
            least = num_decodes + min(tokens, SMALLEST)
            tiles = whole_tiles(num_decodes + tokens, self._config.token_tile, least)
            most = self._config.chunk_budget or tiles
            tokens = max(min(tiles, most) - num_decodes, self._page_size)
        if tokens == allowed:
            return allowed, lengths
        room = self._room(tokens, len(prompts))
        return tokens, [room.grant(prompt) for prompt in prompts]

    def _tokens(self, num_decodes: int) -> int:
        """At least one unit, so that decodes that fill the budget do not starve prompts."""
        if self._config.chunk_budget is None and self._config.max_prefill_tokens is None:
            return self._limits.largest
        return max(self._limits.largest - num_decodes, self._limits.unit)

    def _room(self, tokens: int, num_prompts: int) -> StepRoom:
        sharers = 1
        if self._config.fair_partial_prefills and self._config.max_partial_prefills is not None:
            sharers = min(num_prompts, self._config.max_partial_prefills)
        return StepRoom(self._limits, tokens, sharers)
