"""Models of text score pairs by two of their tokens, as Qwen3-Reranker does; the oracle is transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from baton import LLM
from engine.model_config.model_spec import ModelSpec
from engine.model_config.pooling_spec import pooling_of
from router.api.generation.text.pair_form import PairForm
from router.config.choices import Mode
from router.config.flags.text_settings import RerankerOverrides
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.service.test_embeddings import post

QUERY = "which animal jumps?"
DOCUMENTS = ["the quick brown fox", "a lazy dog", "the fox jumps over the brown dog " * 9]
OVERRIDES = {"classifier_from_token": ["x", "o"], "is_original_qwen3_reranker": True}
TEMPLATE = "".join(
    "{% for m in messages if m.role == '" + role + "' %}" + name + ": {{ m.content }}\n{% endfor %}"
    for role, name in (("system", "I"), ("query", "Q"), ("document", "D"))
)


def qwen3(document: str, instruction: str | None = None, query: str = QUERY) -> str:
    """The prompt of its model card."""
    instruction = instruction or "Given a web search query, retrieve relevant passages that answer the query"
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
        ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return f"{prefix}<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}{suffix}"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("reranker")
    return save_small_model(folder, lambda **of: Qwen3ForCausalLM(Qwen3Config(**of, head_dim=8)))


@torch.inference_mode()
def odds(small: SmallModel, texts: Sequence[str]) -> list[float]:
    """The logit of "o" less that of "x" after each text."""
    found = []
    yes, no = map(small.tokenizer.token_id, ("o", "x"))
    for text in texts:
        [ids] = small.tokenizer.encode_batch([text], add_special_tokens=False)
        logits = small.model(torch.tensor([ids])).logits[0, -1]
        found.append(float(logits[yes] - logits[no]))
    return found


def sigmoid(values: Sequence[float]) -> list[float]:
    return [1 / (1 + math.exp(-value)) for value in values]


def form_of(
    small: SmallModel, overrides: dict[str, Any] | None = None, chosen: Path | None = None
) -> PairForm:
    override = RerankerOverrides.of(None if overrides is None else json.dumps(overrides))
    return PairForm.load(small.folder, small.tokenizer, override, None if chosen is None else str(chosen))


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_the_routes_score_by_two_tokens(reranker: SmallModel, mode: Mode) -> None:
    wanted = odds(reranker, [qwen3(document) for document in DOCUMENTS])
    async with local_cluster(reranker, mode, pairs=form_of(reranker, OVERRIDES)) as cluster:
        ask = {"query": QUERY, "documents": DOCUMENTS}
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            ranked = (await post(cluster, path, {**ask, "return_documents": True}))["results"]
            assert [item["index"] for item in ranked] == sorted(range(3), key=lambda at: -wanted[at])
            for item in ranked:
                at = item["index"]
                assert item["relevance_score"] == pytest.approx(sigmoid(wanted)[at], abs=1e-5)
                assert item["document"]["text"] == DOCUMENTS[at]
        raw = await post(cluster, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True})
        assert {item["index"]: item["score"] for item in raw} == pytest.approx(
            dict(enumerate(wanted)), abs=1e-3
        )
        root = await post(cluster, "/", {"query": QUERY, "texts": DOCUMENTS})
        assert [item["index"] for item in root] == [item["index"] for item in raw]
        pairs = await post(cluster, "/v1/score", {"queries": QUERY, "documents": DOCUMENTS})
        assert [item["score"] for item in pairs["data"]] == pytest.approx(sigmoid(wanted), abs=1e-5)
        if mode is Mode.MIXED:
            assert pairs["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        each = await post(cluster, "/score", {"text_1": ["a", "b"], "text_2": DOCUMENTS[:2]})
        texts = [qwen3(DOCUMENTS[0], query="a"), qwen3(DOCUMENTS[1], query="b")]
        scores = sigmoid(odds(reranker, texts))
        assert [item["score"] for item in each["data"]] == pytest.approx(scores, abs=1e-5)
        body = {"queries": QUERY, "documents": DOCUMENTS, "instruction": "Find foxes"}
        told = await post(cluster, "/score", body)
        scores = sigmoid(odds(reranker, [qwen3(document, "Find foxes") for document in DOCUMENTS]))
        assert [item["score"] for item in told["data"]] == pytest.approx(scores, abs=1e-5)
        await cluster.all_pages_back()


async def test_a_long_document_is_cut_and_the_prompt_after_it_stays(reranker: SmallModel) -> None:
    tokenizer, long = reranker.tokenizer, "a fox " * 1500
    async with local_cluster(reranker, Mode.MIXED, pairs=form_of(reranker, OVERRIDES)) as cluster:
        await post(cluster, "/rerank", {"query": QUERY, "documents": [long]}, 400)
        cut = await post(cluster, "/rerank", {"query": QUERY, "documents": [long], "max_tokens_per_doc": 40})
        most = await post(
            cluster, "/score", {"text_1": QUERY, "text_2": [long], "truncate_prompt_tokens": -1}
        )
    [frame], [own] = tokenizer.encode_batch([qwen3("")]), tokenizer.encode_batch([long])
    shorter = tokenizer.decode(own[:40])
    assert cut["usage"]["prompt_tokens"] == len(frame) + 40
    assert cut["results"][0]["relevance_score"] == pytest.approx(
        sigmoid(odds(reranker, [qwen3(shorter)]))[0], abs=1e-5
    )
    assert most["usage"]["prompt_tokens"] == 2047


async def test_a_cross_encoder_of_sentence_transformers_with_a_template(
    reranker: SmallModel, tmp_path: Path
) -> None:
    """LogitScore, and the template, the instruction and the activation that its folder declares."""
    folder = tmp_path
    for file in reranker.folder.iterdir():
        (folder / file.name).symlink_to(file)
    tokens = {
        "true_token_id": reranker.tokenizer.token_id("o"),
        "false_token_id": reranker.tokenizer.token_id("x"),
    }
    kinds = [
        ("", "base.modules.transformer.Transformer"),
        ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore"),
    ]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds])
    )
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore/config.json").write_text(json.dumps(tokens))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps(
            {
                "prompts": {"web": "Find it"},
                "default_prompt_name": "web",
                "activation_fn": "torch.nn.modules.linear.Identity",
            }
        )
    )
    small = SmallModel(folder, reranker.model, reranker.tokenizer)
    assert pooling_of(folder, ModelSpec.from_folder(folder)) is None
    wanted = odds(small, [f"I: Find it\nQ: {QUERY}\nD: {document}\n" for document in DOCUMENTS])
    async with local_cluster(small, Mode.MIXED, pairs=form_of(small)) as cluster:
        pairs = await post(cluster, "/score", {"text_1": QUERY, "text_2": DOCUMENTS})
        assert [item["score"] for item in pairs["data"]] == pytest.approx(wanted, abs=1e-3)
        shares = await post(cluster, "/score", {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": True})
        assert [item["score"] for item in shares["data"]] == pytest.approx(sigmoid(wanted), abs=1e-5)


async def test_any_model_of_text_may_score_pairs_and_without_a_template_the_texts_are_joined(
    small: SmallModel,
) -> None:
    form = form_of(small, {"classifier_from_token": ["x", "o"], "method": "from_2_way_softmax"})
    async with local_cluster(small, Mode.MIXED, pairs=form) as cluster:
        pairs = await post(cluster, "/score", {"text_1": QUERY, "text_2": DOCUMENTS})
        body = {"text_1": QUERY, "text_2": DOCUMENTS, "instruction": "fox"}
        assert "no template" in (await post(cluster, "/score", body, 400))["error"]["message"]
        # The same workers generate text, and compute no vectors.
        chat = {"model": "small", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        await post(cluster, "/v1/chat/completions", chat)
        await post(cluster, "/v1/embeddings", {"input": "a"}, 400)
    scores = sigmoid(odds(small, [QUERY + document for document in DOCUMENTS]))
    assert [item["score"] for item in pairs["data"]] == pytest.approx(scores, abs=1e-5)


async def test_a_converted_reranker_with_a_template(tmp_path: Path) -> None:
    """Qwen3-Reranker as a classifier with one label: clients write the prompt, or a template does."""

    def family(**of: Any) -> Qwen3ForSequenceClassification:
        return Qwen3ForSequenceClassification(Qwen3Config(**of, head_dim=8, num_labels=1))

    small = save_small_model(tmp_path / "model", family)
    (tmp_path / "pairs.jinja").write_text(TEMPLATE)
    pooling = pooling_of(small.folder, ModelSpec.from_folder(small.folder))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return small.tokenizer.encode_batch(texts, add_special_tokens=False)

    @torch.inference_mode()
    def wanted(prompts: Sequence[Sequence[int]]) -> list[float]:
        return sigmoid([float(small.model(torch.tensor([ids])).logits) for ids in prompts])

    form = form_of(small, chosen=tmp_path / "pairs.jinja")
    body = {"text_1": QUERY, "text_2": DOCUMENTS}
    async with local_cluster(small, Mode.MIXED, pooling=pooling, pairs=form) as cluster:
        for _ in range(2):  # after a cached prefix, too
            pairs = await post(cluster, "/score", body)
            scores = wanted(encode([f"Q: {QUERY}\nD: {document}\n" for document in DOCUMENTS]))
            assert [item["score"] for item in pairs["data"]] == pytest.approx(scores, abs=1e-5)
        assert pairs["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    async with local_cluster(small, Mode.MIXED, pooling=pooling) as cluster:
        query = "Q: fox\nD: "  # encoded by itself, as sentence-transformers does
        pairs = await post(cluster, "/score", {"text_1": query, "text_2": DOCUMENTS})
        [before], after = encode([query]), encode(DOCUMENTS)
        scores = wanted([before + ids for ids in after])
        assert [item["score"] for item in pairs["data"]] == pytest.approx(scores, abs=1e-5)


def test_scores_of_pairs_in_one_process(reranker: SmallModel) -> None:
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_pool_tokens": 4096}
    with LLM(str(reranker.folder), hf_overrides=OVERRIDES, **settings) as llm:
        found = llm.score(QUERY, DOCUMENTS)
        each = llm.score([QUERY, "a"], DOCUMENTS[:2], instruction="fox")
        with pytest.raises(ValueError, match="1 to 2047 tokens"):
            llm.score(QUERY, ["a fox " * 3000])
    assert found == pytest.approx(sigmoid(odds(reranker, [qwen3(each) for each in DOCUMENTS])), abs=1e-5)
    texts = [qwen3(DOCUMENTS[0], "fox"), qwen3(DOCUMENTS[1], "fox", query="a")]
    assert each == pytest.approx(sigmoid(odds(reranker, texts)), abs=1e-5)
    with LLM(str(reranker.folder), convert="embed", **settings) as llm:
        first, second = llm.score([DOCUMENTS[0]] * 2, [DOCUMENTS[0], DOCUMENTS[1]])
        assert first == pytest.approx(1.0)
        assert abs(second) < 1.0
    with LLM(str(reranker.folder), **settings) as llm, pytest.raises(ValueError, match="hf_overrides"):
        llm.score(QUERY, DOCUMENTS)
