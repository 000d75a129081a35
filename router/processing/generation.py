"""The core behind every frontend: prompts in, text out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

from router.dispatch.interface import Dispatcher
from router.errors import InvalidRequest, NotFound, Unavailable
from router.processing.clients import CURRENT_CLIENT
from router.processing.completion import Completion
from router.processing.generation_request import Chat, GenerationRequest, Prompt
from router.processing.run import Run, Running, SequencePlan
from router.processing.sampling_options import derive_seed
from router.processing.served_model import ServedModel
from router.processing.tokenizer import Tokenizer
from router.request_limits import RequestLimits

__all__ = ["Generation"]


class Generation:
    """Turns requests for text into sequences for the dispatcher, and tokens back into text."""

    def __init__(
        self,
        model: ServedModel,
        tokenizer: Tokenizer,
        dispatcher: Dispatcher,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self.model: Final = model
        self.tokenizer: Final = tokenizer
        self._dispatcher: Final = dispatcher
        self.limits: Final = limits
        self._running: Running = {}
        self.created: Final = int(time.time())
        """Since when the model is served, as seconds of Unix time."""

    def ready(self) -> bool:
        return self._dispatcher.ready()

    async def start(self, request: GenerationRequest) -> Run:
        """Validate and tokenize; nothing reaches a worker before the run's chunks are asked for.

        Raises InvalidRequest, NotFound or Overloaded.
        """
        model, options = self.model, request.options
        if request.model not in ("", model.name):
            raise NotFound(
                f"The model {request.model[:100]!r} does not exist; this server has {model.name!r}.",
                param="model",
                code="model_not_found",
            )
        self._check_counts(request)
        # Asked again when the run begins; here it saves the tokenizing.
        CURRENT_CLIENT.get().require_room(len(request.prompts) * request.n)
        options.check(model.vocab_size)
        sequences: list[SequencePlan] = []
        for prompt in request.prompts:
            await asyncio.sleep(0)  # between short prompts, which are tokenized at once, others get a turn
            token_ids = await self._token_ids(prompt)
            room = model.max_model_len - len(token_ids)
            seed = options.seed if options.seed is not None else secrets.randbits(64)
            for k in range(request.n):
                sampling = options.resolve(room=room, seed=derive_seed(seed, k), vocab_size=model.vocab_size)
                completion = Completion(
                    len(sequences),
                    self.tokenizer.detokenizer(token_ids),
                    stops=options.stop,
                    min_tokens=options.min_tokens,
                )
                sequences.append(SequencePlan(token_ids, sampling, completion))
        return Run(model.name, request, sequences, self._dispatcher, self._running)

    def abort(self, request_id: str) -> bool:
        """End a running request, on the workers too. False if the client has none with this id."""
        run = self._running.get((CURRENT_CLIENT.get(), request_id))
        if run is None:
            return False
        run.abort()
        return True

    def fail_all(self) -> None:
        """End every running request with Unavailable: the router stops and cannot wait for them."""
        for run in list(self._running.values()):
            run.fail(Unavailable("The server is shutting down.", public=True))

    async def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        tokenizer = self.tokenizer
        if isinstance(prompt, Chat):
            if not prompt.messages:
                raise InvalidRequest("The conversation is empty; it needs a message.", param="messages")
            text, param = tokenizer.render(prompt.messages, prompt.template_options), "messages"
            self._check_length(tokenizer.fewest_tokens(text), param, "at least ")
            token_ids: Sequence[int] = await tokenizer.encode_rendered(text)
        elif isinstance(prompt, str):
            param = "prompt"
            self._check_length(tokenizer.fewest_tokens(prompt), param, "at least ")
            token_ids = await tokenizer.encode(prompt)
        else:
            token_ids, param = prompt, "prompt"
        self._check_length(len(token_ids), param)
        self._check_ids(token_ids, param)
        return token_ids

    def _check_ids(self, token_ids: Sequence[int], param: str) -> None:
        if not token_ids:
            raise InvalidRequest("The prompt is empty; it needs at least one token.", param=param)
        vocab_size = self.model.vocab_size
        if min(token_ids) < 0 or max(token_ids) >= vocab_size:
            raise InvalidRequest(
                f"The prompt has a token id out of range; this model's are 0 to {vocab_size - 1}.",
                param=param,
            )

    def _check_length(self, tokens: int, param: str, precision: str = "") -> None:
        """`precision` says how `tokens` is meant, where it is not the exact number."""
        limit, context = self.limits.max_prompt_tokens, self.model.max_model_len
        if limit is not None and tokens > limit:
            why = f"this server takes at most {limit}"
        elif tokens >= context:
            why = f"the context holds {context}, and at least one is for the answer"
        else:
            return
        raise InvalidRequest(
            f"The prompt has {precision}{tokens} tokens, but {why}.",
            param=param,
            code="context_length_exceeded",
        )

    def _check_counts(self, request: GenerationRequest) -> None:
        limits = self.limits
        if not request.prompts:
            raise InvalidRequest("There is no prompt.", param="prompt")
        if request.n < 1:
            raise InvalidRequest(f"n must be at least 1, not {request.n}.", param="n")
        if len(request.prompts) * request.n > limits.max_completions:
            raise InvalidRequest(
                f"The request asks for {len(request.prompts) * request.n} completions; "
                f"at most {limits.max_completions} are possible.",
                param="n",
            )
        if (request.options.logprobs or 0) > limits.max_logprobs:
            raise InvalidRequest(
                f"logprobs may be at most {limits.max_logprobs} here, not {request.options.logprobs}.",
                param="logprobs",
            )
        if not request.timeout_s >= 0.0:
            raise InvalidRequest(f"timeout must not be negative: {request.timeout_s}.", param="timeout")
        if request.priority:
            raise InvalidRequest(
                "priority is not supported by this server; leave it out, or send 0.",
                param="priority",
                code="unsupported_parameter",
            )
