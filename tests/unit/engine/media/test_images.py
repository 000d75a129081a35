"""Images through a whole engine, against transformers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from engine.config import Forecast, SpeculationConfig
from engine.core.weights import NewWeights
from engine.errors import MediaMissing, RefillRefused, UnservableRequest
from engine.loop.engine import Engine
from engine.media import tower
from engine.model_config.errors import WeightsError
from engine.speculation.kinds import DrafterKind, DraftHints
from tests.engine_config import engine_config
from tests.unit.engine.engines import run
from tests.unit.engine.media.vlms import FAMILIES, Family, Part, request_of, tokens_of, without_arrays


@dataclass
class Served:
    folder: Path
    model: PreTrainedModel
    family: Family

    def engine(self, **settings: object) -> Engine:
        base = {"page_size": 4, "num_pages": 128, "max_model_len": 256, "max_running_requests": 8}
        return Engine(engine_config(model_path=self.folder, **(base | settings)))

    def expected(self, parts: Sequence[Part], max_tokens: int = 8) -> list[int]:
        return self.family.expected(self.model, parts, max_tokens)


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder, family = tmp_path_factory.mktemp("vlm"), FAMILIES[request.param]
    return Served(folder, family.save(folder), family)


def answers(engine: Engine, *prompts: Sequence[Part]) -> list[list[int]]:
    requests = [request_of(number, parts) for number, parts in enumerate(prompts, 1)]
    run(engine, *requests)
    return [request.output for request in requests]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 16, 64])
def test_the_answer_is_that_of_transformers_for_every_chunk_size(served: Served, budget: int) -> None:
    red, blue = served.family.images(2)
    parts: list[Part] = [[3, 4, 5], red, [6, 7, 8, 9], blue, [10]]
    budget = max(budget, served.family.least)
    engine = served.engine(chunk_budget=budget, page_aligned_chunks=False)
    assert answers(engine, parts) == [served.expected(parts)]
    engine.close()


def test_another_image_has_another_answer(served: Served) -> None:
    """The blue image that was answered "Red": equal tokens, another item."""
    red, blue = served.family.images(2)
    prompts = [[[3, 4, 5], image, [6, 7]] for image in (red, blue)]
    assert tokens_of(prompts[0]) == tokens_of(prompts[1])
    engine = served.engine()
    apart = [answers(engine, parts)[0] for parts in prompts]  # the second finds only the text before
    assert apart == [served.expected(parts) for parts in prompts]
    assert apart[0] != apart[1]
    engine.close()


def test_a_prefix_hit_ends_within_an_image(served: Served) -> None:
    """The cached beginning of an image is not computed again, and its rows go on where the hit ends."""
    (image,) = served.family.images(1)
    engine = served.engine(chunk_budget=max(6, served.family.least), page_aligned_chunks=False)
    parts: list[Part] = [[3, 4, 5, 6, 7], image, [6, 7]]
    first, begin = request_of(1, parts), request_of(2, parts)
    (item,) = first.media
    engine.submit(first)
    while first.num_computed < item.offset + 4:
        engine.step()
    engine.abort(1)
    run(engine, begin)
    if not engine.kv.states.used:  # states are kept at the end of prompts
        assert item.offset < (begin.num_cached or 0) < item.end
    assert begin.output == served.expected(parts)
    engine.close()


def test_equal_images_at_other_offsets_and_side_by_side(served: Served) -> None:
    red, blue = served.family.images(2)
    prompts: list[list[Part]] = [
        [[3], red, red, blue, [4]],
        [[3, 4, 5, 6], blue, red, [4]],
        [red, [4]],
        [[3], red, red, [5]],
    ]
    engine = served.engine(chunk_budget=9)
    assert answers(engine, *prompts) == [served.expected(parts) for parts in prompts]
    engine.close()


def test_an_image_that_is_cached_needs_no_pixels(served: Served) -> None:
    (image,) = served.family.images(1)
    parts: list[Part] = [[3, 4, 5], image, [6, 7, 8, 9, 10]]
    engine = served.engine()
    first, later = request_of(1, parts), without_arrays(request_of(2, parts))
    run(engine, first)
    run(engine, later)
    assert first.output == later.output == served.expected(parts)
    assert (later.num_cached or 0) >= 3 + len(image.tokens)
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_pixels_that_are_missing_fail_the_request_and_leave_no_kv(served: Served, overlap: bool) -> None:
    red, blue = served.family.images(2)
    parts: list[Part] = [[3, 4, 5, 6], red, [6, 7]]
    engine = served.engine(chunk_budget=max(5, served.family.least), overlap=overlap)
    other = request_of(2, [[3], blue, [4]])
    lacking = without_arrays(request_of(1, parts))
    for request in (lacking, other):
        engine.submit(request)
    failed, tokens = [], []
    while engine.has_work:
        output = engine.step()
        failed += output.failed
        tokens += [token.request.id for token in output.tokens]
    assert [(request.id, type(error)) for request, error in failed] == [(1, MediaMissing)]
    assert 1 not in tokens
    assert other.output == served.expected([[3], blue, [4]])
    again = request_of(3, parts)
    run(engine, again)
    assert again.output == served.expected(parts)
    assert (again.num_cached or 0) <= 4
    engine.close()


def test_preempted_requests_go_on_with_the_same_tokens(served: Served) -> None:
    images = served.family.images(4)
    prompts: list[list[Part]] = [[[3, 4, number], image, [5]] for number, image in enumerate(images)]
    pages = len(served.engine().kv.needs.groups) * 16
    engine = served.engine(num_pages=pages, forecast=Forecast.NONE, image_cache_bytes=0)
    requests = [request_of(number, parts, 16) for number, parts in enumerate(prompts, 1)]
    run(engine, *requests)
    assert engine.stats().preemptions
    for request, parts in zip(requests, prompts, strict=True):
        assert request.output == served.expected(parts, 16)
    engine.close()


def test_drafts_after_an_image_change_no_token(served: Served) -> None:
    (image,) = served.family.images(1)
    parts: list[Part] = [[3, 4, 5], image, [6, 7, 6, 7, 6]]
    answer = served.expected(parts, 24)
    engine = served.engine(speculation=SpeculationConfig(num_draft_tokens=4))
    request = request_of(1, parts, 24, hints=DraftHints(answer[:12]))
    run(engine, request)
    assert request.output == answer
    assert engine.stats().drafts.accepted
    engine.close()


def test_new_weights_are_those_of_the_vision_model_too(served: Served, tmp_path: Path) -> None:
    (image,) = served.family.images(1)
    parts: list[Part] = [[3, 4, 5], image, [6]]
    model = served.family.save(tmp_path, seed=1)
    engine = served.engine()
    before = answers(engine, parts)
    engine.refill(NewWeights(tmp_path, "second"))
    assert answers(engine, parts) == [served.family.expected(model, parts, 8)] != before
    engine.close()


def test_a_model_without_its_vision_part_refuses_images_by_name_and_serves_text(served: Served) -> None:
    (image,) = served.family.images(1)
    engine = served.engine(language_model_only=True)
    with pytest.raises(UnservableRequest, match="--language-model-only"):
        engine.submit(request_of(1, [image]))
    assert answers(engine, [[3, 4, 5]]) == [served.expected([[3, 4, 5]])]
    engine.close()


@pytest.mark.parametrize("name", ["smolvlm", "qwen3-vl"])
def test_a_draft_model_drafts_as_a_model_of_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    load = tower._load
    monkeypatch.setattr(tower, "_load", lambda folder, *rest: loaded.append(folder) or load(folder, *rest))
    family = FAMILIES[name]
    served = Served(tmp_path, family.save(tmp_path), family)
    (image,) = family.images(1)
    parts: list[Part] = [[3, 4, 5], image, [6, 7]]
    config = SpeculationConfig(
        num_draft_tokens=3, model_path=tmp_path, drafters=frozenset({DrafterKind.MODEL}), adaptive=False
    )
    engine = served.engine(speculation=config)
    assert answers(engine, parts) == [served.expected(parts)]
    assert engine.stats().drafts.drafts
    assert loaded == [tmp_path]
    engine.close()


def test_arrays_that_the_vision_model_refuses_fail_their_request_alone(served: Served) -> None:
    red, blue = served.family.images(2)
    odd = replace(red, arrays=red.arrays | {"pixel_values": red.arrays["pixel_values"][..., :3]})
    engine = served.engine()
    broken, whole = request_of(1, [[3], odd, [4]]), request_of(2, [[3], blue, [4]])
    for request in (broken, whole):
        engine.submit(request)
    failed = []
    while engine.has_work:
        failed += engine.step().failed
    assert [(request, type(error)) for request, error in failed] == [(broken, UnservableRequest)]
    assert whole.output == served.expected([[3], blue, [4]])
    engine.close()


def test_weights_without_a_vision_model_are_refused_and_the_others_stay(
    served: Served, tmp_path: Path
) -> None:
    (image,) = served.family.images(1)
    parts: list[Part] = [[3, 4, 5], image, [6]]
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not is_of_vision(name)}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    engine = served.engine()
    with pytest.raises(RefillRefused, match="--language-model-only"):
        engine.refill(NewWeights(tmp_path, "second"))
    assert answers(engine, parts) == [served.expected(parts)]
    with pytest.raises(WeightsError, match="--language-model-only"):
        Engine(engine_config(model_path=tmp_path))
    engine.close()


@pytest.mark.parametrize("pages", [50, 60, 70, 90])
def test_images_that_are_computed_whole_wait_for_pages_of_their_windows(pages: int, tmp_path: Path) -> None:
    family = FAMILIES["gemma3"]
    served = Served(tmp_path, family.save(tmp_path), family)
    images = family.images(6)
    prompts: list[list[Part]] = [
        [[5] * 7, images[0], [6] * 20, images[1], [7] * 9, images[2], [8]],
        [images[3], [6] * 31, images[4], images[5], [7] * 3],
    ]
    engine = served.engine(num_pages=pages, chunk_budget=9, page_aligned_chunks=False)
    assert answers(engine, *prompts) == [served.expected(parts) for parts in prompts]
    engine.close()


def is_of_vision(name: str) -> bool:
    return "vision" in name or "visual" in name
