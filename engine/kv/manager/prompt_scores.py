"""Log-probabilities of prompts as a sidecar of cached pages: a prompt that is scored reuses a cached prefix.

The log-probability of a token comes from the logits of the token before it, and stands in the row of the
token itself. With rows of k full blocks a request knows the log-probabilities of all their tokens. It reuses
the KV of k - 1 of them: the logits after the last token of block k - 1 score the next token, which the cache
cannot know, so that block is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from common.sidecars import KEPT_ALTERNATIVES, PROMPT_LOGPROBS, Rows
from engine.core.output import Output
from engine.core.request import Request
from engine.core.sampling_params import PromptLogprobs
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.sidecars import Sidecars
from engine.kv.manager.own_pages import OwnPages
from engine.kv.manager.prompt_sums import PromptSums


class PromptScores:
    def __init__(self, sidecars: Sidecars, pages: OwnPages, cache: RadixCache) -> None:
        self._sidecars = sidecars
        self._pages = pages
        self._cache = cache
        self.sums = PromptSums(sidecars, pages, cache)
        self._found: list[tuple[Request, Output]] = []

    def take_found(self) -> list[tuple[Request, Output]]:
        """Log-probabilities that the cache has had for requests since the last call."""
        found, self._found = self._found, []
        return [(request, scores) for request, scores in found if request.finish is None]

    def look_up(self, request: Request) -> None:
        """Take from the cache what it has of the log-probabilities that a request still wants.

        Its `num_scored` grows, and so does what it may reuse. O(tokens) for a request that is scored, or
        that reads a sum.
        """
        if self.sums.wanted_by(request):
            self.sums.look_up(request)
            return
        pages = self._known_pages(request)
        end = len(pages) * self._pages.page_size - 1
        if end <= request.num_scored:
            return
        rows = self._sidecars.rows(PROMPT_LOGPROBS, pages)[request.num_scored + 1 :]
        scores = _scores(rows, request.num_scored + 1)
        self._found.append((request, _as_wanted(scores, request)))
        request.num_scored = end

    def wanted_by(self, request: Request) -> bool:
        """Whether the computation of a request leaves rows."""
        return bool(request.scores_until) or self.sums.wanted_by(request)

    def inherit(self, request: Request) -> None:
        """A request continues after `num_computed` tokens: take the sum over them, and copy known rows to the
        pages that it has of its own, since it does not compute those rows."""
        self.sums.begin(request)
        for block, page in enumerate(self._known_pages(request, scored=True)):
            own = self._pages.own(request, block)
            if own is not None and own != page:
                self._sidecars.copy(page, own)

    def computed(self, request: Request, scores: Output) -> Output:
        """A chunk has been scored: keep the rows. Returns what its request wants of them."""
        if not isinstance(scores, PromptLogprobs):
            return scores
        size = self._pages.page_size
        if self._pages.group is not None:
            first, rows = scores.position, _rows(scores)
            if first == 1:
                first, rows = 0, np.concatenate([np.zeros(1, PROMPT_LOGPROBS.row), rows])
            end = first + len(rows)
            for block in range(first // size, -(-end // size)):
                page = self._pages.own(request, block)
                if page is not None:
                    begin = max(first, block * size)
                    part = rows[begin - first : (block + 1) * size - first]
                    self._sidecars.write(PROMPT_LOGPROBS, page, begin - block * size, part)
        return _as_wanted(scores, request)

    def merge(self, pages: Iterable[int], cached: Iterable[int]) -> None:
        """`pages` hold the same tokens as `cached` ones: those get rows that they lack."""
        for page, there in zip(pages, cached, strict=False):
            if page != there and min(page, there) >= 0:
                self._sidecars.copy(page, there)

    def _known_pages(self, request: Request, *, scored: bool = False) -> list[int]:
        """Cached pages of the prompt with all their rows, from the first block on. O(tokens).

        None of a request that wants no rows, or more than there are, or none any more unless `scored`.
        """
        wanted = request.sampling.prompt_logprobs
        if (
            self._pages.group is None
            or PROMPT_LOGPROBS not in self._sidecars.kinds
            or not self._cache.enabled
        ):
            return []
        if wanted is None or wanted > KEPT_ALTERNATIVES:
            return []
        if request.num_scored >= request.scores_until and not scored:
            return []
        keys, root = request.keys(0, len(request.prompt)), self._cache.root(request.namespace)
        pages = self._pages.of_group(self._cache.known(keys, root).pages)
        return pages[: self._sidecars.num_complete(PROMPT_LOGPROBS, pages)]


def _rows(scores: PromptLogprobs) -> Rows:
    """`scores` have at least KEPT_ALTERNATIVES."""
    rows = np.zeros(len(scores.logprobs), PROMPT_LOGPROBS.row)
    rows["logprob"], rows["rank"] = scores.logprobs, scores.ranks
    rows["top_id"] = scores.top_ids[:: scores.num_top]
    rows["top_logprob"] = scores.top_logprobs[:: scores.num_top]
    return rows


def _scores(rows: Rows, position: int) -> PromptLogprobs:
    """`rows` are those of tokens from `position` on."""
    columns = [rows[name].tolist() for name in ("logprob", "rank", "top_id", "top_logprob")]
    logprobs, ranks, top_ids, top_logprobs = columns
    return PromptLogprobs(position, logprobs, ranks, KEPT_ALTERNATIVES, top_ids, top_logprobs)


def _as_wanted(scores: PromptLogprobs, request: Request) -> PromptLogprobs:
    """Without alternatives, if the request wants none."""
    return scores if request.sampling.prompt_logprobs else scores.without_alternatives()
