"""The core behind every frontend: prompts in, text out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from engine.grammar.grammar import Grammar
from router.api.generation.audit.answer import Issuer
from router.api.generation.audit.issuing import on_answer_of
from router.api.generation.audit.record_file import RecordFile
from router.api.generation.chat_images import expanded, images_of, placed, without_images
from router.api.generation.completion import Completion
from router.api.generation.envelope import check, filled
from router.api.generation.forced.forced_calls import forced_calls
from router.api.generation.generation_request import (
    Breakpoint,
    Chat,
    GenerationRequest,
    Prompt,
    TokensWithImages,
)
from router.api.generation.history import History
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.parts import OutputParser
from router.api.generation.output.reasoning import ReasoningCounter
from router.api.generation.params.bounds import ServedBounds
from router.api.generation.params.constraint import Constraint, ConstraintChecks
from router.api.generation.params.sampling_options import SamplingOptions, derive_seed
from router.api.generation.run import Run, Running
from router.api.generation.served_model import ServedModel
from router.api.generation.tenants import CURRENT_TENANT
from router.api.generation.text.breakpoints import block_end
from router.api.generation.text.chat_template import PromptEnd
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.images import Images
from router.api.media.prompt import NO_MEDIA, PromptMedia
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.adapters.table import Adapter
from router.dispatch.interface import Dispatcher
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest, NotFound, ShuttingDown
from router.request_limits import MAX_CACHE_KEY, MAX_MESSAGES, RequestLimits
from rpc.baton.v1 import sampling_pb2, worker_pb2


def _none() -> None:
    return None


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    token_ids: Sequence[int]
    grammar: Grammar | None
    """Grammar of a forced tool call."""
    parser: Callable[[], OutputParser | None]
    """Makes a parser for each answer; None if the text is not parsed."""
    counter: Callable[[], ReasoningCounter | None] = _none
    """Makes a counter for each answer; None if reasoning is not counted."""
    visible: Sequence[str] = ()
    """Special tokens that the parser must see."""
    prefixes: Sequence[tuple[int, float]] = ()
    """Tokens of beginnings that the client asks to retain, and for how many seconds."""
    media: PromptMedia = NO_MEDIA

    def constrain(self, options: SamplingOptions) -> SamplingOptions:
        """Add the grammar of a forced tool call, if there is one. Raises InvalidRequest."""
        if self.grammar is None:
            return options
        if options.constraint is not None:
            raise InvalidRequest(
                f"{options.constraint.param} and a forced tool call both constrain the output.",
                param=options.constraint.param,
            )
        constrained = replace(options, constraint=Constraint(self.grammar, "tools"))
        constrained.check_ends()
        return constrained


class Generation:
    """Turns requests for text into sequences for the dispatcher, and tokens back into text."""

    def __init__(
        self,
        model: ServedModel,
        tokenizer: Tokenizer,
        dispatcher: Dispatcher,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 (frozen)
        formats: OutputFormats | None = None,
        history: History | None = None,
        adapters: ServedAdapters | None = None,
        images: Images | None = None,
    ) -> None:
        """`formats`: how answers are parsed; None: by the chat template. `adapters`, `images`: None if the
        workers take none."""
        self.model = model
        self._images: Final = images
        if images is not None:
            tokenizer.show_images_as(images.facts.placeholder)
        self.adapters: Final = adapters
        self._adapter = ""
        """Name of the adapter that its requests use."""
        self.tokenizer: Final = tokenizer
        self._dispatcher: Final = dispatcher
        self.limits: Final = limits
        self.bounds: Final = ServedBounds.of(model, limits)
        self.formats: Final = tokenizer.output_formats if formats is None else formats
        self._constraints: Final = ConstraintChecks()
        self._running: Running = {}
        self.weights: WeightUpdates | None = None
        """None: they cannot be updated."""
        self.records: RecordFile | None = None
        """Where finished requests are written; None: nowhere."""
        self._history: Final = history
        self.created: Final = int(time.time())
        """Unix time in seconds since when the model is served."""

    @property
    def base_name(self) -> str:
        """Name of the served model, also with an adapter."""
        return self.model.name if self.adapters is None else self.adapters.base

    @property
    def adapter_names(self) -> Collection[str]:
        return () if self.adapters is None else self.adapters.names

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may have as `model`."""
        adapters = self.adapter_names
        return (self.base_name, *adapters, *(f"{self.base_name}:{name}" for name in adapters), "")

    def with_adapter(self, name: str) -> Generation:
        """The same model with an adapter, under whose name it answers. Raises NotFound."""
        if name not in self.adapter_names:
            raise NotFound(
                f"The model {self.model.name!r} has no adapter {name[:100]!r}.",
                param="model",
                code="model_not_found",
            )
        adapted = copy(self)
        adapted.model, adapted._adapter = replace(self.model, name=name), name
        return adapted

    async def close(self) -> None:
        """End the processes that check grammars."""
        await self._constraints.close()

    def ready(self) -> bool:
        return self._dispatcher.ready()

    def workers(self, role: worker_pb2.Role) -> int:
        """Number of workers of a role that can be used now."""
        return self._dispatcher.workers(role)

    async def start(self, request: GenerationRequest) -> Run:
        """Validate and tokenize. Nothing is sent to workers before the run's chunks are iterated.

        Raises InvalidRequest or Overloaded.
        """
        model, options = self.model, request.options
        self.model.check_kind(pools=bool(request.work.read.pooling))
        self._check_counts(request)
        check(request.work, self.limits)
        options.check(self.bounds)
        issuer = Issuer(model.name, model.shape, model.numerics, self.tokenizer)
        images = partial(images_of, request.prompts[0])
        on_answer = on_answer_of(request.audit, request.id, images, issuer, self.weights, self.records)
        use = self.adapters.use(self._adapter) if self.adapters is not None and self._adapter else None
        try:
            # Preparing counts, too: rendering and encoding long prompts takes seconds of CPU time.
            with CURRENT_TENANT.get().request(len(request.prompts) * request.n):
                sequences = await self._sequences(request, None if use is None else use.adapter)
        except BaseException:
            if use is not None:
                use.end()
            raise
        return Run(
            model.name, request, sequences, self._dispatcher, self._running, self._history, use, on_answer
        )

    async def _sequences(
        self, request: GenerationRequest, adapter: Adapter | None
    ) -> list[tuple[worker_pb2.Work, Completion]]:
        model, drafts = self.model, await self._drafts(request)
        sequences: list[tuple[worker_pb2.Work, Completion]] = []
        for prompt in request.prompts:
            await asyncio.sleep(0)  # short prompts are tokenized inline: yield to other tasks between them
            prepared = await self.prepare(prompt)
            token_ids, options = prepared.token_ids, prepared.constrain(request.options)
            if options.constraint is not None:
                await self._constraints.check(options.constraint)
            visible = prepared.visible if options.skip_special_tokens else self.tokenizer.special_tokens
            room = model.max_model_len - len(token_ids) + (model.pooling is not None)
            prototype = filled(
                request.work, token_ids, prepared.prefixes, self.limits, prepared.media, adapter
            )
            prototype.routed_experts |= request.routed_by_default and self.limits.routed_experts
            seed = options.seed if options.seed is not None else secrets.randbits(64)
            for k in range(request.n):
                sampling = options.resolve(
                    prompt_tokens=len(token_ids),
                    room=room,
                    seed=derive_seed(seed, k),
                    vocab_size=model.vocab_size,
                    defaults=model.sampling_defaults,
                )
                if request.work.HasField("read"):
                    sampling.max_tokens = 0
                if drafts is not None:
                    sampling.drafts.CopyFrom(drafts)
                completion = Completion(
                    len(sequences),
                    self.tokenizer.detokenizer(token_ids, visible),
                    stops=options.stop,
                    stop_token_ids=options.stop_token_ids,
                    min_tokens=options.min_tokens,
                    prompt_only=options.max_tokens == 0 or request.work.HasField("read"),
                    parser=prepared.parser(),
                    counter=prepared.counter(),
                )
                work = worker_pb2.Work(sampling=sampling)
                work.MergeFrom(prototype)
                sequences.append((work, completion))
        return sequences

    async def _drafts(self, request: GenerationRequest) -> sampling_pb2.DraftHints | None:
        """What the request says about drafts; None: nothing. Raises InvalidRequest."""
        if not request.prediction:
            return None if request.speculative else sampling_pb2.DraftHints(off=True)
        tokens, context = request.prediction, self.model.max_model_len
        if not isinstance(tokens, str):
            self.check_ids(tokens, "drafts.prediction", "prediction")
        elif self.tokenizer.fewest_tokens(tokens) <= context:
            tokens = await self.tokenizer.encode_rendered(tokens)
        else:
            tokens = ()
        if not 0 < len(tokens) <= context:
            raise InvalidRequest(
                f"The prediction has more tokens than the context, which holds {context}.", param="prediction"
            )
        return sampling_pb2.DraftHints(prediction=tokens, off=not request.speculative)

    def release_session(self, key: str) -> None:
        """End what the tenant's session of this key retains in the workers' caches. Raises InvalidRequest."""
        if len(key) > MAX_CACHE_KEY:
            raise InvalidRequest(f"The key has more than {MAX_CACHE_KEY} characters.", param="cache_key")
        self._dispatcher.release_session(CURRENT_TENANT.get().name, key)

    def abort(self, request_id: str) -> bool:
        """Abort a running request, also on the workers. False if the tenant has none with this id."""
        return self.abort_mine({request_id}) > 0

    def abort_mine(self, names: Collection[str] | None = None) -> int:
        """Abort running requests of the tenant, all or those with these ids, their own or their client's.

        Returns their number.
        """
        tenant = CURRENT_TENANT.get()
        found = [
            run
            for (owner, _), run in self._running.items()
            if owner is tenant and (names is None or run.is_named(names))
        ]
        for run in found:
            run.abort()
        return len(found)

    def running(self, request_id: str) -> Run | None:
        """The running request with this id, its own or its client's; of several, the latest."""
        found = [run for run in self._running.values() if run.is_named({request_id})]
        return found[-1] if found else None

    def abort_all(self) -> None:
        """Finish every running request now, with the tokens that it has."""
        for run in list(self._running.values()):
            run.abort()

    def fail_all(self) -> None:
        """End every running request with ShuttingDown, when the router stops and cannot wait for them."""
        for run in list(self._running.values()):
            run.fail(ShuttingDown())

    async def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """The tokens of a prompt, and the parser of its answers. Raises InvalidRequest."""
        tokenizer = self.tokenizer
        parser: Callable[[], OutputParser | None] = _none
        counter: Callable[[], ReasoningCounter | None] = _none
        grammar, visible, media = None, tuple[str, ...](), NO_MEDIA
        prefixes: Sequence[tuple[int, float]] = ()
        if isinstance(prompt, Chat):
            if not prompt.messages:
                raise InvalidRequest("The conversation is empty; it needs a message.", param="messages")
            use, param = prompt.tool_use, "messages"
            self.check_messages(len(prompt.messages))
            prompt, sources = without_images(prompt, self.model, self._images)
            text = await self.rendered(prompt)
            if use.forced and prompt.end is not PromptEnd.ANSWER:
                raise InvalidRequest("A forced tool call must begin its message.", param="tool_choice")
            if use.forced:
                forced = await asyncio.to_thread(forced_calls, self.formats, use, text, tokenizer.special_ids)
                grammar, use = forced.grammar, forced.read_as
            parser, visible = partial(self.formats.parser, use, text), self.formats.markers(use)
            counter = partial(self.formats.counter, use, text)
            parser()  # raises for tools whose calls cannot be parsed
            self._check_length(tokenizer.fewest_tokens(text), param, "at least ")
            token_ids: Sequence[int]
            shown = await expanded(text, sources, self._images)
            if prompt.breakpoints and self.limits.retention:
                ends = [shown.end_of(await self._end(point, text)) for point in prompt.breakpoints]
                token_ids, counts = await tokenizer.encode_to_ends(shown.text, ends)
                times = (point.seconds for point in prompt.breakpoints)
                prefixes = [(tokens, s) for tokens, s in zip(counts, times, strict=True) if tokens]
            else:
                token_ids = await tokenizer.encode_rendered(shown.text)
            media = shown.placed(token_ids)
        elif isinstance(prompt, str):
            param = "prompt"
            self._check_length(tokenizer.fewest_tokens(prompt), param, "at least ")
            token_ids = await tokenizer.encode(prompt)
        elif isinstance(prompt, TokensWithImages):
            token_ids, param = prompt.tokens, "prompt"
            self._check_length(len(token_ids), param)
            media = await placed(prompt, self.model, self._images)
        else:
            token_ids, param = prompt, "prompt"
        self._check_length(len(token_ids), param)
        self.check_ids(token_ids, param)
        return PreparedPrompt(token_ids, grammar, parser, counter, visible, prefixes, media)

    async def _end(self, point: Breakpoint, prompt: str) -> int:
        """Characters of a prompt up to a breakpoint."""
        variants = (without_images(chat, self.model, self._images)[0] for chat in point.altered())
        return block_end(prompt, [await self.rendered(chat) for chat in variants])

    async def rendered(self, chat: Chat) -> str:
        """The prompt of a conversation without images as text. Raises InvalidRequest."""
        messages, tools = self.formats.messages(chat.messages), chat.tool_use.offered
        return await self.tokenizer.rendered(messages, chat.template_options, tools, chat.end)

    def check_messages(self, count: int) -> None:
        """Raise InvalidRequest for more messages than fit the context: each has a token or more."""
        if count > MAX_MESSAGES:
            raise InvalidRequest(f"There are {count} messages; at most {MAX_MESSAGES} fit.", param="messages")
        self._check_length(count, "messages", "at least ")

    def check_text(self, text: str, param: str) -> None:
        """Raise InvalidRequest for a text that has more tokens than fit, before it is encoded."""
        self._check_length(self.tokenizer.fewest_tokens(text), param, "at least ")

    def check_ids(self, token_ids: Sequence[int], param: str, noun: str = "prompt") -> None:
        """Raise InvalidRequest unless these are token ids, and at least one. `noun`: what they are ids of."""
        if not token_ids:
            raise InvalidRequest(f"The {noun} is empty; it needs at least one token.", param=param)
        vocab_size = self.model.vocab_size
        if min(token_ids) < 0 or max(token_ids) >= vocab_size:
            raise InvalidRequest(
                f"The {noun} has a token id out of range; this model's are 0 to {vocab_size - 1}.",
                param=param,
            )

    def _check_length(self, tokens: int, param: str, precision: str = "") -> None:
        """`precision` qualifies `tokens` in the message if it is not exact."""
        limit, context = self.limits.max_prompt_tokens, self.model.max_model_len
        if limit is not None and tokens > limit:
            why = f"this server takes at most {limit}"
        elif self.model.pooling is not None and tokens > context:
            why = f"the model takes at most {context}"
        elif self.model.pooling is None and tokens >= context:
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
        is_read = request.work.HasField("read")  # whose API bounds it
        if len(request.prompts) * request.n > limits.max_completions and not is_read:
            raise InvalidRequest(
                f"The request asks for {len(request.prompts) * request.n} completions; "
                f"at most {limits.max_completions} are possible.",
                param="prompt" if request.n == 1 else "n",
            )
