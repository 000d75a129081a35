"""An adapter beside quantized weights: the answers of the values that they stand for, with it merged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.engine.adapters.adapted import COUNT, adapted_engine, answer, ask, load
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.engine.modeling.loader.quantizing import FP8_FORMATS, INT4_FORMATS, rewrite
from tests.unit.engine.modeling.loader.test_quantized_weights import SHAPE

_FORMATS: Final = {**FP8_FORMATS, **INT4_FORMATS}
_SOME: Final = [*list(FP8_FORMATS)[:2], *list(INT4_FORMATS)[:2]]


@pytest.mark.parametrize("name", _SOME)
def test_each_row_gets_the_answer_of_its_adapter(name: str, tmp_path: Path) -> None:
    source, quantized, dense = tmp_path / "source", tmp_path / "quantized", tmp_path / "dense"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(source)
    rewrite(source, quantized, dense, _FORMATS[name])
    adapters = [save_adapter(dense, tmp_path / f"adapter{k}", k, size=0.1) for k in range(2)]
    asked = prompts(2, 19, SHAPE["vocab_size"])
    engine = adapted_engine(quantized, chunk_budget=8)
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    requests = [
        ask(10 * place + number, prompt, digest)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests)
    ]
    answer(engine, *requests)
    models = [merged(dense, adapter) for adapter in (None, *adapters)]
    right = [greedy(model, prompt, COUNT) for prompt in asked for model in models]
    assert [request.output for request in requests] == right
