"""Grammars compiled for one model's vocabulary, and kept for the next request with the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar
from engine.grammar.matcher import Matcher
from engine.grammar.source import LIMITS, rejected, source_of
from engine.spec.model_spec import ModelSpec

__all__ = ["GrammarCompiler"]

_KEPT: Final = 128
"""Compiled grammars that are kept. Most take less than 1 MB."""


class GrammarCompiler:
    """Safe to use from several threads."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        """`folder` is the model's; its tokenizer.json is read by `load`, or when the first grammar comes."""
        self._folder: Final = folder
        self._spec: Final = spec
        self._lock: Final = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._unusable: str | None = None
        """Why this model's output cannot be constrained."""
        self._compiled: Final[OrderedDict[Grammar, LLMatcher]] = OrderedDict()
        """At their beginnings; the one that was used last comes last."""

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

    def has(self, grammar: Grammar) -> bool:
        """Whether `matcher` returns within microseconds."""
        with self._lock:
            return grammar in self._compiled

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an output. Raises GrammarError.

        Compiles a grammar that is not kept, and computes its first mask, which may take longer than all that
        follow: milliseconds, a second for extreme ones, most of it without the interpreter lock.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
                return Matcher(compiled.deep_copy())
        self.load()
        if self._vocabulary is None:
            raise GrammarError(str(self._unusable))
        compiled = LLMatcher(self._vocabulary, source_of(grammar), log_level=0, limits=LIMITS)
        first = compiled.deep_copy()  # copies share the lexer's states
        first.compute_bitmask()
        if first.is_error():
            raise rejected(grammar, first.get_error())
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return Matcher(compiled.deep_copy())

    def forget(self, grammar: Grammar) -> None:
        """Compile the grammar anew when it is wanted again.

        Its matchers share the lexer's states: when one has reached a limit, so have all.
        """
        with self._lock:
            self._compiled.pop(grammar, None)

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
