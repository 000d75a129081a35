"""The same answers of a model with recurrent states: what is sent is a state behind verified tokens."""

from __future__ import annotations

from tests.integration.service.recurrent_model import tiny  # noqa: F401
from tests.integration.workers.test_speculation import (  # noqa: F401
    test_a_drafted_answer_moves_while_it_is_verified,
    test_an_answer_is_handed_over_and_drafted_on_the_other_worker,
    test_an_eagle_head_drafts_behind_the_prompt_of_an_answer_that_was_handed_over,
    test_many_answers_are_drafted_beside_prompts_in_chunks,
    test_the_answer_of_a_worker_that_ends_while_verifying_continues_elsewhere,
)
