"""Settings of the workers' scheduler. None: the preset's value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config import Batching, Policy, SpeculationConfig
from engine.sched.presets import PRESETS, Preset
from engine.speculation.kinds import Speculation
from router.config.option import Heading

_group = Heading("scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    preset: Preset = _group(
        Preset.BATON,
        "scheduler defaults of another system: page size, step, and this group; explicit flags override them",
    )
    schedule_policy: Policy | None = _group(
        None,
        "order in which waiting requests are admitted (default: by preset; baton: shortest)",
        scheduler="policy",
        aliases=("--scheduling-policy",),
    )
    batching: Batching | None = _group(
        None,
        "mixed: decodes and prefill chunks share a step; prefill-first: prefill steps until no prompt"
        " waits, then decodes; alternating: a decode step, then a prefill step (default: by preset)",
        scheduler="batching",
    )
    disable_chunked_prefill: bool = _group(
        False,
        "compute each prompt in one step, which waits until it fits the budget of --chunked-prefill-size;"
        " that must hold --max-model-len",
    )
    max_prefill_tokens: int | None = _group(
        None,
        "largest number of prefill tokens in a step (default: by preset; sglang: 16384)",
        "TOKENS",
        least=1,
        scheduler="max_prefill_tokens",
    )
    long_prefill_token_threshold: str | None = _group(
        None,
        "largest number of tokens of one prompt in a step; auto: 4 percent of the context; 0: no limit"
        " (default: by preset; roseinfer: 256; vllm with several partial prefills: auto)",
        "TOKENS|auto",
        aliases=("--prefill-chunk-size",),
    )
    max_num_partial_prefills: int | None = _group(
        None,
        "prompts that may be partly computed at a time (default: by preset; sglang: 1)",
        "N",
        least=1,
        scheduler="max_partial_prefills",
    )
    max_long_partial_prefills: int | None = _group(
        None,
        "those of them that are longer than --long-prefill-token-threshold (default: no limit; vllm: 1)",
        "N",
        least=1,
    )
    fair_partial_prefills: bool = _group(
        False, "give prompts in progress equal shares of a step", scheduler="fair_partial_prefills"
    )
    schedule_conservativeness: float | None = _group(
        None,
        "factor of the forecast of output tokens: above 1 fewer requests are admitted, and fewer"
        " preempted later (default: 1)",
        "FACTOR",
        above=0,
        scheduler="schedule_conservativeness",
    )
    low_priority_values_first: bool = _group(
        False,
        "smaller values of a request's priority are more urgent, as in vLLM",
        scheduler="low_priority_values_first",
    )
    priority_preemption_threshold: int | None = _group(
        None,
        "with --schedule-policy priority: a waiting request preempts running ones whose priority is lower"
        " by more than this (default: none is preempted)",
        "N",
        least=0,
        scheduler="priority_preemption_threshold",
        aliases=("--priority-scheduling-preemption-threshold",),
    )
    aging_tokens: int | None = _group(
        None,
        "admit a request first once this many prompt tokens were admitted since its arrival; not used by"
        " policy shortest, which includes aging (default: 4000000)",
        "TOKENS",
        least=1,
        scheduler="aging_tokens",
    )
    fair_share_tokens: int | None = _group(
        None,
        "prompt tokens that each API key may have admitted in its turn while several keys wait; deficit"
        " round robin (default: one queue for all)",
        "TOKENS",
        least=1,
        scheduler="tenant_quantum",
    )

    speculative: Speculation | None = _group(
        None,
        "what drafts tokens beside the request's `prediction`: nothing (prediction), its own text (ngram),"
        " earlier answers too (suffix), --speculative-model (model), the checkpoint's head (mtp), or all"
        " (auto); off: no drafts (default: prediction; other presets: off)",
    )
    speculative_model: str | None = _group(
        None,
        "small model with the same vocabulary, which drafts on the same worker for --speculative model or"
        " auto; as --model, and present on every machine",
        "MODEL",
    )
    speculative_num_draft_tokens: int = _group(
        16, "largest number of drafted tokens of a request in a step", "N", least=1, most=64
    )

    @property
    def speculation(self) -> SpeculationConfig | None:
        drafters = self.effective_speculative.drafters
        if not drafters:
            return None
        return SpeculationConfig(
            drafters=drafters,
            num_draft_tokens=self.speculative_num_draft_tokens,
            reserves=self.speculative is not None,
            mtp=self.speculative is Speculation.MTP,
        )

    @property
    def effective_speculative(self) -> Speculation:
        own = Speculation.PREDICTION if self.preset is Preset.BATON else Speculation.OFF
        return self.speculative or own

    @property
    def effective_policy(self) -> Policy:
        return self.schedule_policy or PRESETS[self.preset].scheduler.policy

    @property
    def effective_batching(self) -> Batching:
        return self.batching or PRESETS[self.preset].scheduler.batching

    @property
    def effective_partial_prefills(self) -> int | None:
        asked, base = self.max_num_partial_prefills, PRESETS[self.preset].scheduler
        return base.max_partial_prefills if asked is None else asked

    @property
    def effective_threshold(self) -> int | Literal["auto"] | None:
        """None: no limit. Raises ValueError for a text that is no threshold."""
        text = self.long_prefill_token_threshold
        given: int | Literal["auto"] | None = (
            None if text is None else "auto" if text == "auto" else int(text)
        )
        if not given and self._limits_several_prefills:  # 0 is vLLM's default, which it replaces
            return "auto"
        return PRESETS[self.preset].scheduler.long_prefill_token_threshold if given is None else given or None

    @property
    def effective_long_prefills(self) -> int | None:
        given = self.max_long_partial_prefills
        return 1 if given is None and self._limits_several_prefills else given

    @property
    def _limits_several_prefills(self) -> bool:
        return (
            PRESETS[self.preset].limits_several_prefills
            and (self.effective_partial_prefills or 1) > 1
            and not self.disable_chunked_prefill
        )
