"""Guesses of a request's next tokens. Plain Python; a guess may be wrong, which costs time and no token."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from engine.speculation.kinds import DrafterKind, TokenId
from engine.speculation.suffix_index import END, ORDER, SuffixIndex


class Drafter(Protocol):
    """Drafts for one request."""

    @property
    def kind(self) -> DrafterKind: ...

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        """At most `limit` tokens that may follow `tokens`: the prompt, of `num_prompt` tokens, and the answer
        so far. From call to call, `tokens` only grows."""


class IndexBudget:
    """Tokens that all requests of a step may index; a request that has few new ones always may.

    An index costs 1 us a token, and the answers of a whole step wait for it.
    """

    def __init__(self, left: int = sys.maxsize) -> None:
        self.left = left

    def take(self, wanted: int) -> int:
        granted = min(wanted, max(self.left, _ALWAYS_INDEXED))
        self.left = max(0, self.left - granted)
        return granted


class NGram:
    """Prompt lookup (Saxena 2023; vLLM's and SGLang's n-gram drafters), by the longest match.

    Of a long prompt, the first steps look up only the beginning.
    """

    kind: Final = DrafterKind.NGRAM

    def __init__(self, budget: IndexBudget) -> None:
        self._budget = budget
        self._index = SuffixIndex()

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        known = len(self._index)
        self._index.extend(tokens[known : known + self._budget.take(len(tokens) - known)])
        found = self._index.continuation(tokens, limit)
        return [] if found is None else found.tokens


class EarlierAnswers:
    """Answers of one tenant that have ended: the newest `capacity` tokens, and at least half of that.

    They are indexed when others are drafted.
    """

    def __init__(self, capacity: int, budget: IndexBudget) -> None:
        self._capacity = capacity
        self._budget = budget
        self._newer, self._older = SuffixIndex(), SuffixIndex()
        self._added: deque[TokenId] = deque(maxlen=capacity)
        """Not indexed yet."""

    def add(self, answer: Iterable[TokenId]) -> None:
        self._added.extend(answer)
        self._added.append(END)

    def continuation(self, tail: Sequence[TokenId], limit: int) -> list[TokenId]:
        for _ in range(self._budget.take(len(self._added))):
            token = self._added.popleft()
            self._newer.extend((token,))
            if token == END and len(self._newer) > self._capacity // 2:
                self._newer, self._older = SuffixIndex(), self._newer
        found = [index.continuation(tail, limit) for index in (self._newer, self._older)]
        return max((f for f in found if f), key=lambda f: f.match).tokens if any(found) else []


class Suffix:
    kind: Final = DrafterKind.SUFFIX

    def __init__(self, answers: EarlierAnswers) -> None:
        self._answers = answers

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        return self._answers.continuation(tokens[-_TAIL:], limit)


class Predicted:
    """Follows the client's prediction; after a divergence, from where the answer joins it again.

    The answer joins where its last tokens are in the prediction, among its first `_MOST_PREDICTED` tokens: at
    the first such place after the last token that was right, else at the last one before it.
    """

    kind: Final = DrafterKind.PREDICTION

    def __init__(self, prediction: Sequence[TokenId], budget: IndexBudget) -> None:
        self._prediction = prediction
        self._budget = budget
        self._index = SuffixIndex()
        self._at: int | None = 0
        """Where the answer is in the prediction; None: nowhere."""
        self._joined = 0
        """Position after the last token of the prediction that was right."""
        self._seen = 0
        """Tokens of the answer that were compared."""

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        known = len(self._index)
        lacking = min(len(self._prediction), _MOST_PREDICTED) - known
        self._index.extend(self._prediction[known : known + self._budget.take(lacking)])
        for end in range(num_prompt + self._seen + 1, len(tokens) + 1):
            self._follow(tokens, num_prompt, end)
        self._seen = len(tokens) - num_prompt
        return [] if self._at is None else list(self._prediction[self._at : self._at + limit])

    def _follow(self, tokens: Sequence[TokenId], num_prompt: int, end: int) -> None:
        at, predicted = self._at, self._prediction
        if at is not None and at < len(predicted) and predicted[at] == tokens[end - 1]:
            self._at = self._joined = at + 1
            return
        self._at = None
        places = self._index.places(tokens[max(end - ORDER, num_prompt) : end])
        if places:
            ahead = [place for place in places if place > self._joined]
            self._at = self._joined = ahead[0] if ahead else places[-1]


_ALWAYS_INDEXED: Final = 16
_MOST_PREDICTED: Final = 16_384
"""Indexed tokens of a prediction, about 230 bytes each."""
_TAIL: Final = 64
"""Tokens of the end of an answer that are looked up."""
