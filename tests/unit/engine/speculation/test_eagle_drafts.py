"""EAGLE-3 heads: drafts are those of the formula, and answers the same as without a head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.model_config.errors import UnsupportedModel, WeightsError
from tests.eagle_head import HeadShape, TrainableHead
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.unit.engine.speculation.drafting import SCHEDULES, Watched, answers, engine_with, greedy, requests


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def head(model: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainableHead, Path]:
    """Head of random weights, so large that no two logits are nearly alike."""
    config = model.model.config
    torch.manual_seed(1)
    ids = torch.randperm(config.vocab_size)[:150].sort().values
    folder = tmp_path_factory.mktemp("head")
    return random_head(folder, config.vocab_size, ids, layers=(0, 1, 3)), folder


def random_head(
    folder: Path, vocab_size: int, ids: torch.Tensor, layers: tuple[int, ...], hidden_size: int = 32
) -> TrainableHead:
    shape = HeadShape(
        vocab_size=vocab_size,
        draft_vocab_size=len(ids),
        hidden_size=hidden_size,
        intermediate_size=48,
        num_heads=hidden_size // 8,
        num_kv_heads=hidden_size // 16,
        max_position=512,
        layers=layers,
    )
    head = TrainableHead(shape, ids).requires_grad_(False)
    for parameter in head.parameters():
        parameter.normal_(0.0 if parameter.dim() > 1 else 1.0, 0.3)
    head.save(folder)
    return head


@torch.inference_mode()
def by_formula(
    model: SmallModel,
    head: TrainableHead,
    tokens: list[int],
    count: int,
    first: int = 0,
    scale: float = 1.0,
) -> list[int]:
    """The greedy draft behind `tokens`, from the target's hidden states of tokens from `first` on. `scale`:
    by which the target multiplies embeddings, unlike the head."""
    layers = model.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    hidden = torch.cat([layers[layer + 1][0] for layer in (0, 1)], -1)
    hidden = torch.cat([hidden, _last_layer(model, tokens)], -1)[first:-1]
    draft: list[int] = []
    for _ in range(count):
        embedded = model.model.get_input_embeddings()(torch.tensor([*tokens[first + 1 :], *draft])) / scale
        padded = torch.cat([hidden, hidden.new_zeros(len(draft), hidden.shape[1])])
        logits = head.chain(embedded, padded, len(draft) + 1)[-1]
        draft.append(int(head.ids[logits[-1].argmax()]))
    return draft


def _last_layer(model: SmallModel, tokens: list[int]) -> torch.Tensor:
    """The last layer's output before the final norm, which transformers does not list."""
    seen: list[torch.Tensor] = []
    hook = model.model.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.model(torch.tensor([tokens]))
    hook.remove()
    return seen[0][0]


@pytest.mark.parametrize("changes", SCHEDULES)
def test_drafts_are_those_of_the_formula_and_change_nothing(
    model: SmallModel,
    head: tuple[TrainableHead, Path],
    samplings: list[SamplingParams],
    plain: dict[int, list[Any]],
    changes: dict[str, Any],
) -> None:
    engine = engine_with(model.folder, head[1], **changes)
    watched = Watched(engine)
    assert answers(engine, requests(samplings)) == plain
    assert len(watched.drafted) > 20
    if samplings[0].temperature == 0 and "num_pages" not in changes:
        for tokens, draft in watched.drafted[::5]:
            assert draft == by_formula(model, head[0], tokens, len(draft))
    engine.close()


def test_a_head_drafts_with_the_hidden_states_that_are_here(
    model: SmallModel, head: tuple[TrainableHead, Path]
) -> None:
    """As behind a handoff: the KV of the prompt's first 32 tokens came from elsewhere."""
    engine = engine_with(model.folder, head[1])
    watched = Watched(engine)
    first, again = (Request(k, range(5, 62), SamplingParams(max_tokens=20, ignore_eos=True)) for k in (1, 2))
    engine.submit(first)
    while engine.has_work:
        engine.step()
    watched.source._marks.clear()  # type: ignore[attr-defined]
    watched.drafted.clear()
    engine.submit(again)
    while engine.has_work:
        engine.step()
    assert again.output == first.output
    assert watched.drafted
    for tokens, draft in watched.drafted:
        assert draft == by_formula(model, head[0], tokens, len(draft), first=56)
    engine.close()


def test_a_cached_prefix_comes_with_its_rows(model: SmallModel, head: tuple[TrainableHead, Path]) -> None:
    engine = engine_with(model.folder, head[1])
    watched = Watched(engine)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    for id in (1, 2):
        watched.drafted.clear()
        request = Request(id, range(5, 62), sampling)
        engine.submit(request)
        while engine.has_work:
            engine.step()
    assert request.num_cached
    assert watched.drafted
    for tokens, draft in watched.drafted:
        assert draft == by_formula(model, head[0], tokens, len(draft))
    engine.close()


def test_an_answer_that_began_elsewhere_is_drafted_for_once_its_tokens_are_computed(
    model: SmallModel,
    head: tuple[TrainableHead, Path],
    samplings: list[SamplingParams],
    plain: dict[int, list[Any]],
) -> None:
    engine = engine_with(model.folder, head[1])
    continued = requests(samplings)
    for request in continued:
        request.output = [token for token, *_ in plain[request.id][:10]]
    assert answers(engine, continued) == {id: told[10:] for id, told in plain.items()}
    assert engine.stats().drafts.drafted > 30
    engine.close()


def _with_states(**fields: Any) -> PreTrainedModel:
    linear = {f"linear_{what}": 8 for what in ("key_head_dim", "value_head_dim")}
    linear |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    types = ["linear_attention", "full_attention"] * 2
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields, **linear, head_dim=8, layer_types=types))


def _with_windows(**fields: Any) -> PreTrainedModel:
    types = ["sliding_attention", "full_attention"] * 2
    fields |= {"head_dim": 8, "layer_types": types, "sliding_window": 12}
    return Gemma3ForCausalLM(Gemma3TextConfig(**fields, query_pre_attn_scalar=8))


@pytest.mark.parametrize("family", [_with_states, _with_windows])
def test_a_head_drafts_for_models_with_states_or_windows(
    head: tuple[TrainableHead, Path], tmp_path: Path, family: Callable[..., PreTrainedModel]
) -> None:
    model = save_small_model(tmp_path, family, num_hidden_layers=4)
    without = engine_with(model.folder, None)
    engine = engine_with(model.folder, head[1])
    watched = Watched(engine)
    assert answers(engine, requests(greedy(30))) == answers(without, requests(greedy(30)))
    assert len(watched.drafted) > 20
    scale = 32**0.5 if family is _with_windows else 1.0  # heads take embeddings as they are stored
    for tokens, draft in watched.drafted[::9]:
        assert draft == by_formula(model, head[0], tokens, len(draft), scale=scale)
    for each in (engine, without):
        each.close()


def test_a_head_of_another_model_is_refused(head: tuple[TrainableHead, Path], tmp_path: Path) -> None:
    other = save_small_model(tmp_path, hidden_size=16, num_hidden_layers=4)
    with pytest.raises(UnsupportedModel, match="use a head of this model"):
        engine_with(other.folder, head[1])


Variant: TypeAlias = Callable[[dict[str, Any], dict[str, torch.Tensor]], dict[str, Any]]


def of_the_authors(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and EAGLE3-Vicuna1.3-13B: the target's class and layers."""
    tensors["embed_tokens.weight"] = torch.zeros(config["vocab_size"], config["hidden_size"])
    names = ["LlamaForCausalLM"]
    return {key: value for key, value in config.items() if key != "eagle_config"} | {
        "architectures": names,
        "num_hidden_layers": 40,
    }


def of_speculators(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """As vLLM's library speculators writes them."""
    for name in [name for name in tensors if name.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)
    own = ("architectures", "eagle_config", "draft_vocab_size")
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config["draft_vocab_size"],
        "transformer_layer_config": {key: value for key, value in config.items() if key not in own},
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }


@pytest.mark.parametrize(("variant", "binary"), [(of_the_authors, True), (of_speculators, False)])
def test_published_heads_draft_what_they_draft_in_specforges_format(
    tmp_path: Path, variant: Variant, binary: bool
) -> None:
    model = save_small_model(tmp_path / "model", num_hidden_layers=8)
    specforge, published = tmp_path / "specforge", tmp_path / "published"
    torch.manual_seed(2)
    random_head(specforge, model.model.config.vocab_size, torch.arange(3, 153), layers=(1, 3, 4))
    published.mkdir()
    tensors = load_file(specforge / "model.safetensors")
    config = variant(json.loads((specforge / "config.json").read_text()), tensors)
    (published / "config.json").write_text(json.dumps(config))
    if binary:
        torch.save(tensors, published / "pytorch_model.bin")
    else:
        save_file(tensors, published / "model.safetensors")
    seen = []
    for folder in (specforge, published):
        engine = engine_with(model.folder, folder)
        watched = Watched(engine)
        answers(engine, requests(greedy(12)))
        seen.append([draft for _, draft in watched.drafted])
        engine.close()
    assert seen[0] == seen[1]
    assert len(seen[0]) > 20


def test_a_head_of_another_size_has_an_embedding_of_its_own(model: SmallModel, tmp_path: Path) -> None:
    """As heads of models with wide hidden states: `target_hidden_size`."""
    torch.manual_seed(3)
    target, own = 32, 16
    ids = torch.arange(3, 153)
    shape = random_head(tmp_path, model.model.config.vocab_size, ids, (0, 1, 3), hidden_size=own).shape
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["fc.weight"] = torch.randn(own, 3 * target)
    config = shape.config() | {"target_hidden_size": target}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain, seen = answers(engine_with(model.folder, None), requests(greedy(12))), []
    for _ in range(2):
        tensors["embed_tokens.weight"] = torch.randn(shape.vocab_size, own)
        save_file(tensors, tmp_path / "model.safetensors")
        engine = engine_with(model.folder, tmp_path)
        watched = Watched(engine)
        assert answers(engine, requests(greedy(12))) == plain
        seen.append([draft for _, draft in watched.drafted])
        engine.close()
    assert seen[0] != seen[1], "it drafts from its own embedding"
    del tensors["embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="missing embed_tokens"):
        engine_with(model.folder, tmp_path)
