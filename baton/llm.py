"""`LLM`: a model in this process."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast, overload

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from baton import reads
from baton.generation import OfflineRunner, OfflineSequence, finish_of
from baton.images import OfflineImages
from baton.lora import LoadedLoras, Loras, for_each, loaded
from baton.outputs import CompletionOutput, RequestOutput
from baton.pairs import OfflinePairs
from baton.sampling_params import SamplingParams
from baton.settings import config_of
from baton.vectors import vectors
from engine.device.current import enter_device
from engine.executor.build import build_runner
from engine.kernels.compilations import COMPILATIONS
from engine.loop.engine import Engine
from engine.loop.warmup import warm_up, warmup_plan_for
from engine.model_config.pooling_spec import PoolingSpec
from engine.modeling.loader.checkpoint import resolve
from engine.modeling.loader.weights_identity import served_shape
from router.api.embeddings.pooled import TextPair, Vectors, embeddings, scores
from router.api.generation.audit.answer import Answer, Detail, Issuer
from router.api.generation.audit.receipts import WeightsSpan, issued, receipt_of
from router.api.generation.completion import Completion
from router.api.generation.params.bounds import ServedBounds
from router.api.generation.params.sampling_options import SamplingOptions, derive_seed
from router.api.generation.sampling_defaults import sampling_defaults
from router.api.generation.text.pair_form import PairForm
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.prompt import NO_MEDIA, ExpandedPrompt, PromptMedia
from router.cluster.worker_config.plan_warnings import warnings_of
from router.cluster.worker_config.this_machine import this_machine
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.flags.text_settings import RerankerOverrides
from router.dispatch.adapters.adapted_work import fill_origin
from router.errors import InvalidRequest
from router.request_limits import LOGPROBS_LIMIT
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": text} and {"prompt_token_ids": ids}; beside a text with placeholders,
"multi_modal_data": {"image": one or several of Pillow}."""
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
Message: TypeAlias = Mapping[str, Any]

_UNLIMITED: Final = 1 << 30


class LLM:
    """Loads the model when made. One caller at a time, on the thread that made it; a context manager, too."""

    def __init__(self, model: str, **settings: Any) -> None:
        """`model`: as `router --model` takes it. `settings`: the router's flags for device, memory, batching
        and scheduling, with underscores, and the names that SGLang and vLLM have for them: `device`, `dtype`,
        `max_model_len`, `gpu_memory_utilization`, `max_num_batched_tokens`, `preset`.

        Raises TypeError for a name that is none of these, ValueError for settings that are wrong, and what
        loading raises.
        """
        config = config_of({"model": model, **settings})
        checkpoint = resolve(model, keep_codes=config.keeps_codes)
        spec = checkpoint.spec(config.model_impl)
        machine = this_machine(config)
        for warning in warnings_of(config, machine):
            _log.warning(warning)
        [plan] = plan_workers(config, checkpoint, machine)
        engine_config = plan.config.engine
        enter_device(engine_config.device)
        template = config.frontend.chat_template
        self._tokenizer = Tokenizer.load(
            checkpoint.path, vocab_size=spec.vocab_size, template=template, words=spec.words_of_kinds
        )
        runner, drafts = build_runner(engine_config)
        self._engine = Engine(engine_config, runner=runner, drafts=drafts)
        warm_up(runner, engine_config, warmup_plan_for(engine_config), drafts)
        COMPILATIONS.serve()
        self._runner = OfflineRunner(self._engine, self._tokenizer)
        self._images = OfflineImages(checkpoint.path, engine_config, spec, self._tokenizer, config.media)
        override = RerankerOverrides.of(config.hf_overrides)
        form = PairForm.load(checkpoint.path, self._tokenizer, override, template)
        self._pairs = OfflinePairs(self._engine, self._runner, self._tokenizer, form)
        self._name = config.served_model_name or checkpoint.name
        self._shape = served_shape(engine_config, spec)
        self._vocab_size = spec.vocab_size
        self._defaults = sampling_defaults(config.frontend.generation_config, checkpoint.path)
        self._bounds = ServedBounds(
            model_names=(checkpoint.name, ""),
            last_token_id=spec.vocab_size - 1,
            max_new_tokens=self.max_model_len - 1,
            max_completions=_UNLIMITED,
            max_logprobs=LOGPROBS_LIMIT,
        )

    @property
    def max_model_len(self) -> int:
        """Prompt and answer together, in tokens."""
        return self._engine.max_tokens

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        lora_request: Loras = None,
        receipt: bool | str = False,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. `sampling_params`, `lora_request`: for all, or one for each
        prompt; adapters need `enable_lora=True`. `receipt`: True or "digests", as in requests.

        An answer that could not be computed has finish_reason "error"; the others are complete. Raises
        ValueError for a prompt or parameters that cannot be, before anything is computed.
        """
        each = _as_list(prompts)
        texts, ids = [_text_of(prompt) for prompt in each], [_ids_of(prompt) for prompt in each]
        try:
            shown = [None if ids[i] is not None else self._shown(prompt) for i, prompt in enumerate(each)]
            encoded = iter(self._tokenizer.encode_batch([one.text for one in shown if one is not None]))
            token_ids = [next(encoded) if given is None else given for given in ids]
            media = [one.placed(p) if one else NO_MEDIA for one, p in zip(shown, token_ids, strict=True)]
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self._answer(texts, token_ids, media, sampling_params, lora_request, receipt, progress)

    def _shown(self, prompt: Prompt) -> ExpandedPrompt:
        """The prompt of a text, with its images. Raises ValueError, and InvalidRequest."""
        text = _text_of(prompt) or ""
        data = prompt.get("multi_modal_data") if isinstance(prompt, Mapping) else None
        return self._images.prompt(text, data) if data else ExpandedPrompt(text)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora_request: Loras = None,
        receipt: bool | str = False,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers to one conversation, or to several: lists of {"role": …, "content": …}, with images as in
        requests or as {"type": "image_pil", "image_pil": …}.

        Raises ValueError, also where the model has no chat template.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        try:
            options = chat_template_kwargs or {}
            shown = [self._images.conversation(cast(Sequence[Message], c), options) for c in conversations]
            texts = [one.text for one in shown]
            token_ids = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            media = [one.placed(ids) for one, ids in zip(shown, token_ids, strict=True)]
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self._answer(texts, token_ids, media, sampling_params, lora_request, receipt, progress)

    def decide(
        self,
        input: str | Sequence[Message],
        questions: Sequence[Mapping[str, Any]],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Answers to questions about a text or a conversation, by probabilities, without generated text.

        Questions and answers are those of `/v1/decisions`. Raises ValueError.
        """
        body = json.dumps({"input": input, "questions": list(questions)}).encode()
        return reads.decide(self._runner, self._tokenizer, body, chat_template_kwargs or {})

    @overload
    def score(
        self, query: str | Sequence[str], items: Sequence[str], *, instruction: str | None = None
    ) -> list[float]: ...
    @overload
    def score(
        self,
        query: str | Sequence[int],
        items: Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int],
        *,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]: ...
    def score(
        self,
        query: str | Sequence[str] | Sequence[int],
        items: Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int] | None = None,
        *,
        apply_softmax: bool = False,
        item_first: bool = False,
        instruction: str | None = None,
    ) -> list[float] | list[list[float]]:
        """A score of the query, or of each of as many queries, and each item, as `/score` has them.

        With labels: their probabilities after the query and each item, as `/v1/score` has them;
        `apply_softmax`: among the labels, otherwise among all tokens. Raises ValueError.
        """
        if label_token_ids is None:
            queries = [query] * len(items) if isinstance(query, str) else query
            pairs = [TextPair(str(a), str(b)) for a, b in zip(queries, items, strict=True)]
            return self._pairs.scores(pairs, instruction)
        both = [(item, query) if item_first else (query, item) for item in items]
        texts = [a + b for a, b in both if isinstance(a, str) and isinstance(b, str)]
        if texts and len(texts) < len(both):
            raise ValueError("query and items must both be texts, or both token ids.")
        ids = [[*a, *b] for a, b in both if not isinstance(a, str) and not isinstance(b, str)]
        prompts = self._tokenizer.encode_batch(texts) if texts else ids
        return reads.score(self._runner, prompts, label_token_ids, among_labels=apply_softmax)

    def embed(self, texts: str | Sequence[str], *, dimensions: int | None = None) -> list[list[float]]:
        """Embeddings of texts, as `/v1/embeddings` computes them.

        Raises ValueError for a model that computes none, and for a text that is longer than the model takes.
        """
        found, pooling = self._vectors(texts)
        try:
            rows: list[list[float]] = embeddings(found, pooling, dimensions, None).tolist()
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return rows

    def classify(self, texts: str | Sequence[str]) -> list[dict[str, float]]:
        """Scores by the names of labels, as `/classify` computes them. Raises as `embed` does."""
        found, pooling = self._vectors(texts)
        if not pooling.classifies:
            raise ValueError("This model computes embeddings, and no scores of labels.")
        return [dict(zip(pooling.labels, row, strict=True)) for row in scores(found, pooling, None).tolist()]

    def _vectors(self, texts: str | Sequence[str]) -> tuple[Vectors, PoolingSpec]:
        pooling = self._engine.config.pooling
        if pooling is None:
            raise ValueError('This model generates text; LLM(model, convert="embed") computes embeddings.')
        each = [texts] if isinstance(texts, str) else list(texts)
        before = pooling.prompts.get(pooling.default_prompt, "")
        prompts = self._tokenizer.encode_inputs([before + text for text in each])
        if not prompts or not all(0 < len(prompt) <= self.max_model_len for prompt in prompts):
            raise ValueError(f"Texts need 1 to {self.max_model_len} tokens each, and there must be one.")
        return vectors(self._engine, prompts), pooling

    def close(self) -> None:
        """Frees the model. Nothing may be asked of it afterwards."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        texts: Sequence[str | None],
        prompts: Sequence[list[int]],
        media: Sequence[PromptMedia],
        params: Params,
        lora_request: Loras,
        receipt: bool | str,
        progress: bool,
    ) -> list[RequestOutput]:
        detail = _detail(receipt)
        each, loras = _for_each(params, len(prompts)), for_each(lora_request, len(prompts))
        answers, sequences = [], []
        for index, (text, prompt, one) in enumerate(zip(texts, prompts, each, strict=True)):
            mine = self._sequences(prompt, one)
            for sequence in mine:
                sequence.lora, sequence.media = loras[index], media[index]
            answers.append((RequestOutput(str(index), text, prompt, [s.output for s in mine]), mine[0]))
            sequences += mine
        columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not progress, transient=True) as bars:
            bar = bars.add_task("", total=len(sequences))
            adapters = loaded(self._engine.adapters, loras)
            self._runner.run(sequences, adapters, lambda _: bars.advance(bar))
        if detail is not None:
            for sequence in sequences:
                self._issue(sequence, adapters, detail)
        for answer, first in answers:
            answer.num_cached_tokens = first.completion.cached_tokens
        return [answer for answer, _ in answers]

    def _issue(self, sequence: OfflineSequence, adapters: LoadedLoras, detail: Detail) -> None:
        """Add the receipt of an answer without an error."""
        lora, output, weights = sequence.lora, sequence.output, self._engine.weights
        if output.error is not None:
            return
        media = sequence.media
        work = worker_pb2.Work(
            prompt=sequence.prompt, sampling=sequence.sampling, prompt_keys=media.keys, media=media.items
        )
        fill_origin(work, adapters.get(lora))
        answer = Answer(work, sequence.stops, output.token_ids, finish_of(output), ())
        span = WeightsSpan(first=0, digest=weights.checkpoint, version=weights.version)
        name = self._name if lora is None else lora.lora_name
        issuer = Issuer(name, self._shape, self._engine.config.numerics, self._tokenizer)
        output.receipt = issued(receipt_of(answer, issuer, [span]), answer, detail)

    def _sequences(self, prompt: list[int], params: SamplingParams) -> list[OfflineSequence]:
        """One for each of n answers. Raises ValueError."""
        room = self.max_model_len - len(prompt)
        if not prompt or room < 1:
            raise ValueError(
                f"A prompt has {len(prompt)} tokens; it needs 1 to {self.max_model_len - 1},"
                " so that one is left for the answer."
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise ValueError(f"A prompt has a token id out of range: 0 to {self._vocab_size - 1}.")
        if params.n < 1:
            raise ValueError(f"n must be at least 1, not {params.n}.")
        seed = secrets.randbits(64) if params.seed is None else params.seed
        try:
            params.check(self._bounds)
            return [self._sequence(prompt, params, k, room, seed) for k in range(params.n)]
        except InvalidRequest as error:
            raise ValueError(str(error)) from None

    def _sequence(
        self, prompt: list[int], options: SamplingOptions, index: int, room: int, seed: int
    ) -> OfflineSequence:
        sampling = options.resolve(
            prompt_tokens=len(prompt),
            room=room,
            seed=derive_seed(seed, index),
            vocab_size=self._vocab_size,
            defaults=self._defaults,
        )
        completion = Completion(
            index,
            self._tokenizer.detokenizer(prompt),
            stops=options.stop,
            stop_token_ids=options.stop_token_ids,
            min_tokens=options.min_tokens,
        )
        output = CompletionOutput(index, logprobs=None if options.logprobs is None else [])
        return OfflineSequence(prompt, sampling, completion, output, options.stop)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return cast(list[Prompt], list(prompts))


def _detail(receipt: bool | str) -> Detail | None:
    """Raises ValueError."""
    try:
        return Detail.asked(receipt)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _text_of(prompt: Prompt) -> str | None:
    if isinstance(prompt, Mapping):
        text = prompt.get("prompt")
        return None if text is None or "prompt_token_ids" in prompt else str(text)
    return prompt if isinstance(prompt, str) else None


def _ids_of(prompt: Prompt) -> list[int] | None:
    """None for a prompt of text. Raises ValueError."""
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return list(prompt["prompt_token_ids"])
        if "prompt" in prompt:
            return None
        raise ValueError('A prompt as a mapping needs "prompt" or "prompt_token_ids".')
    return list(prompt)


def _for_each(params: Params, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{count} prompts, but {len(params)} sampling_params; give one, or one for each.")
    return params
