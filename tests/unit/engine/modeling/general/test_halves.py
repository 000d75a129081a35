"""The head's half of a pass, computed before any body has been."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.modeling.general.halves import Halves

SHAPE = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("kind", "body", "more"),
    [
        ("llama", "model", {"hidden_size": 16, "intermediate_size": 16}),
        ("opt", "model.decoder", {"hidden_size": 16, "ffn_dim": 16, "word_embed_proj_dim": 16}),
        ("mixtral", "model", {"hidden_size": 16, "intermediate_size": 16, "num_key_value_heads": 2}),
    ],
)
def test_logits_of_given_hidden_states_need_no_pass_before(
    kind: str, body: str, more: dict[str, int]
) -> None:
    top = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE, **more)).eval()
    hidden = torch.randn(3, 16)
    with torch.inference_mode():
        found = Halves(top, body).logits(hidden)
        assert torch.equal(found, top.get_output_embeddings()(hidden[:, None])[:, 0])
