"""Where an answer is computed again: on a service, or by a model in this process."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any, Final, Protocol

from router.command.audit.outcome import NotComparable
from router.command.client.api import ApiClient, ApiError, Unreachable, add_api_arguments, api_of

_OF_SERVICES: Final = {"model", "prompt", "cache_salt", "return_token_ids"}
"""Fields of a body that say nothing to a model in this process, or not as parameters."""


_TUPLES: Final = {"stop", "stop_token_ids"}
"""Sampling parameters that JSON has as lists."""


class Computer(Protocol):
    @property
    def most_at_once(self) -> int | None:
        """1: only one answer at a time, and on the thread that made it; None: any number."""
        ...

    @property
    def renames(self) -> bool:
        """Whether models have other names there than their answers say."""
        ...

    def answer(self, body: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
        """The answer to a body of /v1/completions, with what the body asks for. Raises NotComparable.

        `adapter`: digest of the LoRA adapter, which the body's `model` names; empty: none.
        """
        ...

    def logprobs(
        self, model: str, before: Sequence[int], tokens: Sequence[int], adapter: str = ""
    ) -> Sequence[float] | None:
        """Log-probabilities of these tokens after others, among all tokens; None if they cannot be had."""
        ...


class OnService:
    """Thread-safe."""

    most_at_once: Final = None

    def __init__(self, api: ApiClient, model: str | None = None) -> None:
        """`model`: name of the model there; None: as the body says."""
        self._api = api
        self._model = model

    @property
    def renames(self) -> bool:
        return self._model is not None

    def answer(self, body: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = self._api.post("/v1/completions", self._named(body, adapter))
        except (ApiError, Unreachable) as error:
            raise NotComparable(str(error)) from None
        return answer

    def logprobs(
        self, model: str, before: Sequence[int], tokens: Sequence[int], adapter: str = ""
    ) -> Sequence[float] | None:
        asked = {"query": before[:-1], "items": [before[-1:]], "label_token_ids": tokens}
        try:
            answer = self._api.post("/v1/score", self._named({"model": model, **asked}, adapter))
        except (ApiError, Unreachable):
            return None
        return [math.log(share) if share else -math.inf for share in answer["scores"][0]]

    def _named(self, body: Mapping[str, Any], adapter: str) -> dict[str, Any]:
        model = body["model"]
        if self._model is not None:
            model = f"{self._model}:{model}" if adapter else self._model
        return {**body, "model": model}


class InProcess:
    """A model that this process loads, as `baton.LLM` does."""

    most_at_once: Final = 1
    renames: Final = True

    def __init__(self, model: str, **settings: Any) -> None:
        """Raises what loading raises."""
        baton = import_module("baton")  # torch takes seconds to import
        self._params = baton.SamplingParams
        self._llm = baton.LLM(model, **settings)

    def answer(self, body: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
        if adapter:
            raise NotComparable("the answer is one of a LoRA adapter, which only a service has; use --url")
        names = {field.name for field in fields(self._params) if field.init}
        options = {name: value for name, value in body.items() if name in names}
        more = {name: body[name] for name in body.keys() - names - _OF_SERVICES}
        if "images" in more:
            raise NotComparable("the prompt has images, which only a service computes again; use --url")
        if "structured_outputs" in more:
            raise NotComparable("offline inference has no structured output; use --url")
        try:
            if "logit_bias" in options:
                options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
            options |= {name: tuple(options[name]) for name in _TUPLES & options.keys()}
            params = self._params(**options)
            (answer,) = self._llm.generate([body["prompt"]], params, progress=False, **more)
        except ValueError as error:
            raise NotComparable(str(error)) from None
        output = answer.outputs[0]
        if output.error is not None:
            raise NotComparable(output.error)
        return {"choices": [asdict(output)]}

    def logprobs(
        self, model: str, before: Sequence[int], tokens: Sequence[int], adapter: str = ""
    ) -> Sequence[float] | None:
        (shares,) = self._llm.score(list(before[:-1]), [list(before[-1:])], list(tokens))
        return [math.log(share) if share else -math.inf for share in shares]


def add_computer_arguments(parser: argparse.ArgumentParser) -> None:
    """See `computer_of`."""
    parser.add_argument("--model", help="load this model here, instead of asking the router at --url")
    parser.add_argument("--device", help="with --model: cpu or cuda")
    parser.add_argument("--dtype", help="with --model: float32, bfloat16 or float16")
    parser.add_argument(
        "--served-model", metavar="NAME", help="name of the model at --url, if it has another"
    )
    add_api_arguments(parser)


def computer_of(arguments: argparse.Namespace) -> Computer:
    """Raises OSError, ValueError, and what loading a model raises."""
    if arguments.model is None:
        return OnService(api_of(arguments), arguments.served_model)
    return InProcess(arguments.model, device=arguments.device, dtype=arguments.dtype)
