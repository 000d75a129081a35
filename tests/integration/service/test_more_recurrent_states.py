"""The rest of the tests of handoffs and migrations, with a model whose layers have recurrent states."""

from __future__ import annotations

import pytest

from tests.integration.service.recurrent_model import tiny  # noqa: F401
from tests.integration.service.test_adaptive_placement import (  # noqa: F401
    test_clients_that_disconnect_during_handoffs_in_both_directions_leak_no_page,
    test_handoffs_in_both_directions_complete_with_full_pools,
    test_two_workers_with_full_pools_do_not_deadlock,
    test_workers_send_handoffs_in_both_directions_while_they_decode,
)
from tests.integration.service.test_moving_answers import (  # noqa: F401
    test_a_stream_continues_when_either_worker_ends_during_a_move,
    test_an_answer_moves_without_a_gap_or_a_duplicate,
    test_clients_that_disconnect_during_a_move_leak_no_page,
)
from tests.integration.workers.test_disagg_workers import (  # noqa: F401
    test_a_retry_continues_the_output_of_the_first_attempt,
    test_a_transferred_request_gets_the_tokens_of_transformers,
    test_a_worker_of_either_role_computes_whole_requests,
    test_sampling_is_unchanged_by_a_handoff,
    transport,
)
from tests.integration.workers.test_live_migration import (  # noqa: F401
    test_a_migration_is_cancelled_by_aborting_it_at_the_source,
    test_an_abort_at_either_worker_at_any_moment_leaks_no_page,
    test_an_answer_stays_at_its_source_when_the_receiver_dies,
    test_an_answer_that_ends_during_its_migration_is_complete,
    test_several_answers_migrate_at_once_beside_other_prompts,
)

pytestmark = pytest.mark.thorough
