"""Processes of the tests that start in a tenth of a second, since torch is imported once for all of them."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

import torch

import engine.executor.runner
import tests.kv_support
import worker.tensor_parallel.rank_process

_PRELOADED = (torch, engine.executor.runner, worker.tensor_parallel.rank_process, tests.kv_support)
"""What most of them import. Nothing that starts threads or opens devices: neither survives a fork."""


def starting() -> BaseContext:
    """The way to start a process: forked from a server that has torch imported.

    Where there is a GPU, each is a new interpreter: one forked after CUDA was looked at cannot use it, and
    the server would not see the CUDA_VISIBLE_DEVICES that a rank is started with.
    """
    if torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module.__name__ for module in _PRELOADED])
    return context
