"""A draft model: the same answers as without one, drafts as good as it is, and no page lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from engine.config import SpeculationConfig
from engine.core.draft_source import Wanted
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import EngineError
from engine.executor.draft_model import DraftModel, draft_engine_config
from engine.executor.runner import ModelRunner
from engine.speculation.kinds import DrafterKind, DraftHints
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.unit.engine.speculation.drafting import MODEL_ONLY, SCHEDULES, answers, engine_with, requests
from tests.unit.tiny import make_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """Says something else: it is narrower, with the same vocabulary."""
    return save_small_model(tmp_path_factory.mktemp("other"), hidden_size=16)


@pytest.mark.parametrize("changes", SCHEDULES)
def test_a_model_that_drafts_for_itself_is_right_and_changes_nothing(
    model: SmallModel, samplings: list[SamplingParams], plain: dict[int, list[Any]], changes: dict[str, Any]
) -> None:
    engine = engine_with(model.folder, model.folder, **changes)
    assert answers(engine, requests(samplings)) == plain
    counts = engine.stats().drafts
    assert counts.drafted == counts.accepted > 30
    engine.close()


def test_a_model_that_says_something_else_changes_nothing(
    model: SmallModel, other: SmallModel, samplings: list[SamplingParams], plain: dict[int, list[Any]]
) -> None:
    engine = engine_with(model.folder, other.folder, chunk_budget=16)
    assert answers(engine, requests(samplings)) == plain
    counts = engine.stats().drafts
    assert counts.accepted < 0.1 * counts.drafted
    engine.close()


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """The same model, with rows of padding behind its vocabulary, which it often guesses."""
    small = save_small_model(tmp_path_factory.mktemp("padded"))
    vocab_size = small.model.config.vocab_size
    small.model.resize_token_embeddings(vocab_size + 30, mean_resizing=False)
    torch.manual_seed(3)
    small.model.get_output_embeddings().weight.data[vocab_size:].normal_(std=0.6)
    small.model.save_pretrained(small.folder)
    return small


def test_guesses_beyond_the_vocabulary_of_the_target_are_not_verified(
    model: SmallModel, padded: SmallModel, samplings: list[SamplingParams], plain: dict[int, list[Any]]
) -> None:
    engine = engine_with(model.folder, padded.folder)
    guessed: list[int] = []
    drafts: Any = engine.drafts
    draft = drafts.draft

    def noted(wanted: Sequence[Wanted]) -> list[list[int]]:
        found = draft(wanted)
        guessed.extend(token for tokens in found for token in tokens)
        return found

    drafts.draft = noted
    assert answers(engine, requests(samplings)) == plain
    vocab_size = engine.runner.spec.vocab_size
    assert min(guessed) < vocab_size <= max(guessed)
    assert engine.stats().drafts.accepted > 0
    engine.close()


def test_an_answer_that_began_elsewhere_is_caught_up_with(
    model: SmallModel, samplings: list[SamplingParams], plain: dict[int, list[Any]]
) -> None:
    engine = engine_with(model.folder, model.folder)
    continued = requests(samplings)
    for request in continued:
        request.output = [token for token, *_ in plain[request.id][:10]]
    assert answers(engine, continued) == {id: told[10:] for id, told in plain.items()}
    counts = engine.stats().drafts
    assert counts.drafted == counts.accepted > 30
    engine.close()


def test_a_request_may_use_other_drafters_alone(model: SmallModel, samplings: list[SamplingParams]) -> None:
    engine = engine_with(model.folder, model.folder)
    without = requests(samplings)
    for request in without:
        request.hints = DraftHints(drafters=frozenset({DrafterKind.NGRAM}))
    answers(engine, without)
    assert not engine.stats().drafts.drafted
    engine.close()


def draft_model(folder: Path, *, num_pages: int) -> DraftModel:
    speculation = SpeculationConfig(drafters=MODEL_ONLY, model_path=folder)
    config = make_config(folder, speculation=speculation, num_pages=num_pages, chunk_budget=16)
    own = draft_engine_config(config)
    return DraftModel(own, ModelRunner(own))


def test_pages_go_to_the_requests_that_draft_now(model: SmallModel) -> None:
    drafts = draft_model(model.folder, num_pages=12)  # 48 tokens
    sampling = SamplingParams(max_tokens=9)
    prompts = (range(9, 29), range(40, 60), range(60, 80))
    one, two, three = (
        Request(k, list(prompt), sampling, output=[k], slot=k) for k, prompt in enumerate(prompts)
    )
    for request in (one, two, three, one):
        found: list[list[int]] = [[]]
        while not found[0]:  # the first call computes a chunk of the prompt
            found = drafts.draft([Wanted(request, 3)])
        assert len(found[0]) == 3
        drafts.check_pages()
    crowd = [Wanted(request, 3) for request in (one, two, three)]
    sizes = [len(found) for _ in range(3) for found in drafts.draft(crowd)]
    assert max(sizes) == 3
    assert min(sizes) == 0, "there is room for two of them"
    for request in (one, two, three):
        drafts.ended(request.id)
    assert drafts.check_pages().held == 0
    drafts.close()


def test_a_token_that_the_draft_model_lacks_ends_its_drafts(model: SmallModel) -> None:
    drafts = draft_model(model.folder, num_pages=12)
    known = Request(1, [5, 6, 7], SamplingParams(max_tokens=9), output=[8], slot=0)
    assert drafts.draft([Wanted(known, 2)])[0]
    known.output += [model.model.config.vocab_size]
    assert drafts.draft([Wanted(known, 2)]) == [[]]
    unknown = Request(2, [5, model.model.config.vocab_size], SamplingParams(max_tokens=9), output=[8], slot=0)
    assert drafts.draft([Wanted(unknown, 2)]) == [[]]
    assert drafts.check_pages().held == 0
    drafts.close()


def test_a_model_whose_layers_have_windows_is_refused(tmp_path: Path) -> None:
    config = Gemma3TextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=16,
    )
    Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="cannot draft"):
        draft_model(tmp_path, num_pages=12)
