"""Ranks read adapters beside their steps, and hold what rank 0 has read, or none of them does."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from engine.config import LoraConfig
from engine.core.adapters import Dropping, Filling, Holding, ReadingAhead
from engine.errors import AdapterRefused
from engine.executor.adapters import RunnerAdapters
from engine.modeling.loader.model_loader import load_model
from engine.parallel import StepChannel, TorchCommunicator
from tests.ranks import together
from tests.unit.engine.adapters.peft_oracle import save_adapter
from tests.unit.tiny import save_tiny_llama

_CONFIG = LoraConfig(max_loras=1, max_lora_rank=4)


def adapters_of(base: Path, ranks: TorchCommunicator) -> tuple[RunnerAdapters, StepChannel]:
    model = load_model(base, communicator=ranks)
    ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
    channel = StepChannel(ranks)
    return RunnerAdapters(model, _CONFIG, ranks, channel), channel


def next_order(channel: StepChannel, kind: type) -> ReadingAhead | Holding | Dropping | Filling:
    order = channel.receive()
    assert isinstance(order, kind)
    assert isinstance(order, ReadingAhead | Holding | Dropping | Filling)
    return order


def wait_until_read(adapters: RunnerAdapters) -> None:
    ends = time.monotonic() + 60
    while adapters.is_reading:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_rank_holds_what_it_read_while_rank_0_did(tmp_path: Path) -> None:
    """The folder is gone when rank 0 orders the others to hold the adapter: no rank reads it then."""
    base, style = tmp_path / "base", tmp_path / "style"
    save_tiny_llama(base)
    save_adapter(base, style, 1)

    def load(ranks: TorchCommunicator) -> bool:
        adapters, channel = adapters_of(base, ranks)
        if ranks.shard.is_first_rank:
            adapters.begin("style", style)
            read = adapters.read("style", style)
            ranks.all_reduce_min(0)
            shutil.rmtree(style)
            adapters.hold(read)
        else:
            adapters.follow(next_order(channel, ReadingAhead))
            wait_until_read(adapters)
            ranks.all_reduce_min(0)
            adapters.follow(next_order(channel, Holding))
        adapters.close()
        return True

    assert together(2, load) == [True, True]


def test_a_content_that_was_written_meanwhile_is_refused_by_all_ranks(tmp_path: Path) -> None:
    base, style = tmp_path / "base", tmp_path / "style"
    save_tiny_llama(base)
    save_adapter(base, style, 1)

    def load(ranks: TorchCommunicator) -> str:
        adapters, channel = adapters_of(base, ranks)
        if ranks.shard.is_first_rank:
            read = adapters.read("style", style)
            save_adapter(base, style, 2)
            ranks.all_reduce_min(0)
            with pytest.raises(AdapterRefused) as refused:
                adapters.hold(read)
        else:
            ranks.all_reduce_min(0)
            with pytest.raises(AdapterRefused) as refused:
                adapters.follow(next_order(channel, Holding))
        adapters.close()
        return str(refused.value)

    first, other = together(2, load)
    assert "another rank" in first
    assert "has changed while it was loaded" in other
