"""Handoffs, migrations, full pools and lost workers with a model whose layers have recurrent states.

The tests are those of the tiny Llama, with another model in the fixtures `folder` and `oracle`.
"""

from __future__ import annotations

from tests.integration.service.recurrent_model import tiny  # noqa: F401
from tests.integration.service.test_adaptive_placement import (  # noqa: F401
    test_a_stream_continues_when_either_worker_ends,
    test_tokens_equal_those_of_transformers_under_every_placement,
)
from tests.integration.service.test_moving_answers import (  # noqa: F401
    test_answers_move_back_and_forth_under_load,
    test_answers_move_while_pools_are_full_and_requests_are_preempted,
)
from tests.integration.workers.test_disagg_workers import (  # noqa: F401
    test_concurrent_handoffs_do_not_mix,
    transport,
)
from tests.integration.workers.test_live_migration import (  # noqa: F401
    test_a_migrated_answer_continues_at_its_next_token,
    test_an_answer_paused_for_a_slow_receiver_continues_at_its_source,
)
