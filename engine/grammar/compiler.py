"""Grammars compiled for one model's vocabulary, and kept for the next request with the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar
from engine.grammar.matcher import Matcher
from engine.grammar.source import LIMITS, divisors_of, rejected, source_of
from engine.model_config.served_model import ServableSpec

_CAPACITY: Final = 64 << 20
"""Bytes of compiled grammars that are kept, as estimated: 300 small ones, or ten of the largest schemas."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    matcher: LLMatcher
    """At its beginning."""
    size: int
    """Bytes, as estimated."""


class GrammarCompiler:
    """Safe to use from several threads."""

    def __init__(self, folder: Path, spec: ServableSpec, capacity: int = _CAPACITY) -> None:
        """`folder` is the model's; its tokenizer.json is read by `load`, or when the first grammar comes.

        `capacity`: bytes of compiled grammars to keep; the newest is kept in any case.
        """
        self._folder: Final = folder
        self._spec: Final = spec
        self._lock: Final = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._unusable: str | None = None
        """Why this model's output cannot be constrained."""
        self._capacity: Final = capacity
        self._compiled: Final[OrderedDict[Grammar, _Compiled]] = OrderedDict()
        """The one that was used last comes last."""
        self.kept_bytes = 0
        """Estimated memory of the compiled grammars that are kept."""

    def load(self) -> None:
        """Read the vocabulary now: 0.4 s for 50,000 tokens, with the interpreter lock held.

        Raises nothing for a model that has no usable tokenizer: `matcher` refuses each grammar.
        """
        with self._lock:
            if self._vocabulary is None and self._unusable is None:
                try:
                    self._vocabulary = self._read_vocabulary()
                except GrammarError as error:
                    self._unusable = str(error)

    @property
    def num_kept(self) -> int:
        return len(self._compiled)

    def kept(self, grammar: Grammar) -> Matcher | None:
        """What `matcher` returns within microseconds; None if the grammar must be compiled first."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                return None
            self._compiled.move_to_end(grammar)
            return Matcher(compiled.matcher.deep_copy())

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an output. Raises GrammarError.

        Compiles a grammar that is not kept, and computes its first mask, which may take longer than all that
        follow: milliseconds, a second for extreme ones, most of it without the interpreter lock.
        """
        if (kept := self.kept(grammar)) is not None:
            return kept
        self.load()
        if self._vocabulary is None:
            raise GrammarError(str(self._unusable))
        source = source_of(grammar)
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=LIMITS)
        first = matcher.deep_copy()  # copies share the lexer's states
        first.compute_bitmask()
        if first.is_error():
            raise rejected(grammar, first.get_error())
        with self._lock:
            self._drop(grammar)  # another thread may have compiled it meanwhile
            self._compiled[grammar] = _Compiled(matcher, estimated_bytes(grammar, source))
            self.kept_bytes += self._compiled[grammar].size
            while self.kept_bytes > self._capacity and len(self._compiled) > 1:
                self._drop(next(iter(self._compiled)))
            return Matcher(matcher.deep_copy())

    def forget(self, grammar: Grammar) -> None:
        """Drop a compiled grammar, so that its next use compiles it again.

        Its matchers share the lexer's states: when one has reached a limit, so have all.
        """
        with self._lock:
            self._drop(grammar)

    def _drop(self, grammar: Grammar) -> None:
        compiled = self._compiled.pop(grammar, None)
        if compiled is not None:
            self.kept_bytes -= compiled.size

    def _read_vocabulary(self) -> LLTokenizer:
        path = self._folder / "tokenizer.json"
        if not path.exists():
            raise GrammarError("this model has no tokenizer.json, which structured output needs")
        if not self._spec.eos_token_ids:
            raise GrammarError("this model has no end-of-sequence token, with which structured output ends")
        try:
            return LLTokenizer(
                path.read_text(), n_vocab=self._spec.vocab_size, eos_token=list(self._spec.eos_token_ids)
            )
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise GrammarError(
                f"this model's tokenizer cannot be used for structured output: {reason}"
            ) from None


_BASE: Final = 180_000
"""Lexer states that every grammar of the vocabulary has."""
_PER_SOURCE_BYTE: Final = 200
"""Measured: 35 for long enumerations, 90 for choices, 140 to 200 for schemas with many properties."""
_PER_REMAINDER: Final = 500
"""A `multipleOf` has a lexer state for each remainder."""


def estimated_bytes(grammar: Grammar, source: str) -> int:
    """Estimated size of `grammar` after its first mask; `source` is its form for llguidance (`source_of`)."""
    remainders = sum(divisors_of(grammar))
    return _BASE + _PER_SOURCE_BYTE * len(source.encode()) + _PER_REMAINDER * remainders
