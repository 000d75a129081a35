"""Compiles attention kernels while the weights of a model are loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Final

import torch

from common.progress import Progress
from engine.config import EngineConfig
from engine.mixers.attention.select import build_kernels
from engine.model_config.model_spec import ModelSpec

_LOOK_S: Final = 0.3


@contextmanager
def kernels_ahead(
    config: EngineConfig, spec: ModelSpec, device: torch.device, progress: Progress
) -> Iterator[None]:
    """What attention will load is compiled in a thread, and waited for at the end of the context.

    Raises BuildFailed there.
    """
    if device.type != "cuda":
        yield
        return
    said = ["kernels"]
    built: Future[None] = Future()
    dtype: torch.dtype = getattr(torch, config.dtype)
    build = partial(
        build_kernels,
        config.attention_backend,
        spec,
        device,
        dtype=dtype,
        stored=torch.float8_e4m3fn if config.fp8_kv else dtype,
        report=said.append,
    )
    # A daemon, so that an error of the context is not kept back by a compiler.
    Thread(target=_run, args=(build, built), name="compile", daemon=True).start()
    yield
    while not built.done():
        progress(f"Compiling: {said[-1]}", 0, 0)
        time.sleep(_LOOK_S)
    built.result()


def _run(build: Callable[[], None], built: Future[None]) -> None:
    try:
        build()
    except BaseException as error:
        built.set_exception(error)
    else:
        built.set_result(None)
