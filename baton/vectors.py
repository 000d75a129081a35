"""Vectors of prompts, on an engine of this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.core.read import Pooled, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import EngineError
from engine.loop.engine import Engine


def vectors(engine: Engine, prompts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """A vector for each prompt, neither normalized nor cut.

    Raises ValueError for a model of text, and EngineError if one cannot be computed.
    """
    pooling = engine.config.pooling
    if pooling is None:
        raise ValueError("The engine generates text.")
    found: dict[int, npt.NDArray[np.float32]] = {}
    try:
        for index, prompt in enumerate(prompts):
            read = Read(pooling=pooling.pooling)
            engine.submit(Request(index, prompt, SamplingParams(max_tokens=0), read=read))
        while engine.has_work:
            output = engine.step()
            for _, error in output.failed:
                raise error
            for request, numbers in output.outputs:
                assert isinstance(numbers, Pooled)
                found[request.id] = np.frombuffer(numbers.values, "<f4")
    except EngineError:
        for index in range(len(prompts)):
            engine.abort(index)
        raise
    return np.stack([found[index] for index in range(len(prompts))])
