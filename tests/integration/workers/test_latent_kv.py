"""Latent KV alone in tiers, in pulls and under drafts: the tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.conftest import Oracle
from tests.integration.models.kinds_of_kv import chosen, chosen_together, latents, latents_v2
from tests.integration.workers.caching.test_pulled_prefixes import (  # noqa: F401
    test_a_prefix_comes_from_the_cache_of_another_worker,
    transport,
)
from tests.integration.workers.caching.test_tiers import (  # noqa: F401
    test_disaggregated_workers_use_their_own_tiers,
    test_evicted_prefixes_come_up_from_host_memory,
    test_flipped_bits_in_files_never_become_tokens,
    test_prefixes_survive_a_restart_on_disk,
)
from tests.integration.workers.test_speculation import (  # noqa: F401
    test_an_answer_is_handed_over_and_drafted_on_the_other_worker,
    test_many_answers_are_drafted_beside_prompts_in_chunks,
)
from tests.unit.tiny import VOCAB

_OTHERS = [pytest.param(kind, marks=pytest.mark.thorough) for kind in (latents_v2, chosen_together)]


@pytest.fixture(scope="module", params=[latents, chosen, *_OTHERS])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    """A page has as many bytes as in the tests of tiers: a row of 32 features instead of two heads of 8."""
    torch.manual_seed(0)
    model = request.param(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    ).eval()
    folder = tmp_path_factory.mktemp("latents")
    model.save_pretrained(folder)
    return folder, Oracle(model)
