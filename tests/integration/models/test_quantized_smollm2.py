"""What quantized weights cost SmolLM2, on this repository's documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.checkpoints.perplexity import Variant, perplexity
from engine.modeling.layers.linear import codes
from engine.modeling.loader.checkpoint import resolve
from engine.modeling.loader.model_loader import load_model

DOCUMENT = Path(__file__).parents[3] / "docs" / "reliability.md"


@pytest.mark.thorough
def test_fp8_weights_change_the_perplexity_by_no_more_than_their_rounding() -> None:
    """Three bits of mantissa round each weight by 2.5% on average; the smallest model feels it most."""
    folder = resolve("smollm2").path
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(DOCUMENT.read_text())["input_ids"][:1024])

    exact, quantized = (
        perplexity(load_model(folder, quantization=quantization), ids, window=1024)
        for quantization in (None, "fp8")
    )

    assert quantized == pytest.approx(exact, rel=0.04)


@pytest.mark.thorough
def test_integers_of_a_gguf_file_have_the_perplexity_of_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    if codes.cpu_kernels(torch.float32) is None:
        pytest.skip("this CPU has no kernels for integers")
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)
    folder = resolve("smollm2").path
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(DOCUMENT.read_text())["input_ids"][:512])

    exact, packed = (
        perplexity(Variant("smollm2", "float32", packed=packed).load("cpu"), ids, window=512)
        for packed in (False, True)
    )

    assert packed == pytest.approx(exact, rel=1e-4)
