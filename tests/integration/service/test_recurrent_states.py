"""Handoffs, migrations, full pools and lost workers with a model whose layers have recurrent states.

The tests are those of the tiny Llama, with another model in the fixtures `folder` and `oracle`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.integration.conftest import Oracle
from tests.integration.service.test_adaptive_placement import (  # noqa: F401
    test_a_stream_continues_when_either_worker_ends,
    test_clients_that_disconnect_during_handoffs_in_both_directions_leak_no_page,
    test_handoffs_in_both_directions_complete_with_full_pools,
    test_tokens_equal_those_of_transformers_under_every_placement,
    test_two_workers_with_full_pools_do_not_deadlock,
    test_workers_send_handoffs_in_both_directions_while_they_decode,
)
from tests.integration.service.test_moving_answers import (  # noqa: F401
    test_a_stream_continues_when_either_worker_ends_during_a_move,
    test_an_answer_moves_without_a_gap_or_a_duplicate,
    test_answers_move_back_and_forth_under_load,
    test_answers_move_while_pools_are_full_and_requests_are_preempted,
    test_clients_that_disconnect_during_a_move_leak_no_page,
)
from tests.integration.workers.test_disagg_workers import (  # noqa: F401
    test_a_retry_continues_the_output_of_the_first_attempt,
    test_a_transferred_request_gets_the_tokens_of_transformers,
    test_a_worker_of_either_role_computes_whole_requests,
    test_concurrent_handoffs_do_not_mix,
    test_sampling_is_unchanged_by_a_handoff,
    transport,
)
from tests.integration.workers.test_live_migration import (  # noqa: F401
    test_a_migrated_answer_continues_at_its_next_token,
    test_a_migration_is_cancelled_by_aborting_it_at_the_source,
    test_an_abort_at_either_worker_at_any_moment_leaks_no_page,
    test_an_answer_paused_for_a_slow_receiver_continues_at_its_source,
    test_an_answer_stays_at_its_source_when_the_receiver_dies,
    test_an_answer_that_ends_during_its_migration_is_complete,
    test_several_answers_migrate_at_once_beside_other_prompts,
)
from tests.unit.tiny import VOCAB


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    """Two delta nets and two attention layers; weights large enough that logits differ clearly."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.5,
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3_5ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("tiny-qwen3.5")
    model.save_pretrained(folder)
    return folder, Oracle(model)


@pytest.fixture(scope="module")
def folder(tiny: tuple[Path, Oracle]) -> Path:
    return tiny[0]


@pytest.fixture(scope="module")
def oracle(tiny: tuple[Path, Oracle]) -> Oracle:
    return tiny[1]
