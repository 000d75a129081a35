"""Vectors over HTTP equal transformers', in the shapes of OpenAI, vLLM, Cohere, Jina and TEI."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import tokenizers
import torch
from openai import AsyncOpenAI, BadRequestError
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, BertModel, Qwen3Config, Qwen3Model

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import Convert, pooling_of
from router.api.generation.text.tokenizer import Tokenizer
from router.command.client.batch import run as batch
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model

TEXTS = ["the quick brown fox", "a lazy dog", "the fox jumps over the brown dog " * 3]


def with_ends(small: SmallModel, *, pairs: bool) -> SmallModel:
    """The model with special tokens around its texts, as encoders have them, or with an end (Qwen3)."""
    file = small.folder / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.post_processor = (
        TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", 0), ("</s>", 1)])
        if pairs
        else TemplateProcessing("$A </s>", None, [("</s>", 1)])
    )
    backend.save(str(file))
    words = small.model.config.vocab_size
    return SmallModel(small.folder, small.model, Tokenizer.load(small.folder, vocab_size=words, words=words))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("bert")
    small = with_ends(save_small_model(folder, lambda **of: BertModel(BertConfig(**of))), pairs=True)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules])
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    prompts = {"prompts": {"query": "the fox: "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return small


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    def family(**of: Any) -> BertForSequenceClassification:
        return BertForSequenceClassification(BertConfig(**of, num_labels=1))

    return with_ends(save_small_model(tmp_path_factory.mktemp("reranker"), family), pairs=True)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("qwen3")
    return with_ends(
        save_small_model(folder, lambda **of: Qwen3Model(Qwen3Config(**of, head_dim=8))), pairs=False
    )


def running(small: SmallModel, mode: Mode = Mode.MIXED, override: str | None = None) -> Any:
    pooling = pooling_of(small.folder, ModelSpec.from_folder(small.folder), Convert.AUTO, override)
    assert pooling is not None
    return local_cluster(small, mode, pooling=pooling)


@pytest.fixture
async def cluster(encoder: SmallModel) -> AsyncIterator[LocalCluster]:
    async with running(encoder) as found:
        yield found


async def post(cluster: LocalCluster, path: str, body: dict[str, Any], status: int = 200) -> Any:
    """The answer, which is compared with /openapi.json, as the body is if it is accepted."""
    async with httpx.AsyncClient(timeout=60.0) as client:
        answer = await client.post(f"{cluster.url}{path}", json=body)
        document = (await client.get(f"{cluster.url}/openapi.json")).json()
    assert answer.status_code == status, answer.text
    about = document["paths"][path]["post"]
    compared = [(about["responses"][str(status)], answer.json())]
    if status == 200:
        compared.append((about["requestBody"], body))
    for described, value in compared:
        schema = described["content"]["application/json"]["schema"]
        jsonschema.validate(value, {**schema, "components": document["components"]})
    return answer.json()


def expected(small: SmallModel, text: str, dimensions: int = 32) -> np.ndarray[Any, Any]:
    return expected_of(small, text, Pooling.MEAN, dimensions)


@torch.inference_mode()
def expected_of(small: SmallModel, text: str, pooling: Pooling, dimensions: int = 32) -> np.ndarray[Any, Any]:
    [ids] = small.tokenizer.encode_batch([text])
    hidden = small.model(torch.tensor([ids])).last_hidden_state[0]
    row = hidden.mean(0) if pooling is Pooling.MEAN else hidden[-1]
    row = row[:dimensions]
    return (row / row.norm()).numpy()


async def test_the_client_of_openai(cluster: LocalCluster, encoder: SmallModel) -> None:
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client:
        found = await client.embeddings.create(model="small", input=TEXTS)  # base64 on the wire
        short = await client.embeddings.create(model="small", input=TEXTS[0], dimensions=5)
        [ids] = encoder.tokenizer.encode_batch([TEXTS[1]])
        of_ids = await client.embeddings.create(model="small", input=ids, encoding_format="float")
        with pytest.raises(BadRequestError, match="dimensions must be from 1 to 32"):
            await client.embeddings.create(model="small", input="a", dimensions=33)
        with pytest.raises(BadRequestError, match="computes embeddings and generates no text"):
            await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "a"}])
    for text, item in zip(TEXTS, found.data, strict=True):
        np.testing.assert_allclose(item.embedding, expected(encoder, text), atol=1e-5)
    np.testing.assert_allclose(short.data[0].embedding, expected(encoder, TEXTS[0], 5), atol=1e-5)
    np.testing.assert_allclose(of_ids.data[0].embedding, expected(encoder, TEXTS[1]), atol=1e-5)
    lengths = [len(ids) for ids in encoder.tokenizer.encode_batch(TEXTS)]
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(lengths)
    await cluster.all_pages_back()


async def test_the_shapes_of_others(cluster: LocalCluster, encoder: SmallModel) -> None:
    of_tei = await post(cluster, "/embed", {"inputs": TEXTS})
    np.testing.assert_allclose(of_tei, [expected(encoder, text) for text in TEXTS], atol=1e-5)
    raw = await post(cluster, "/embed", {"inputs": TEXTS[0], "normalize": False})
    assert np.linalg.norm(raw[0]) != pytest.approx(1.0)
    body = {
        "model": "small",
        "texts": TEXTS,
        "input_type": "search_query",
        "embedding_types": ["float", "ubinary"],
    }
    of_cohere = await post(cluster, "/v2/embed", body)
    wanted = np.stack([expected(encoder, f"the fox: {text}") for text in TEXTS])
    np.testing.assert_allclose(of_cohere["embeddings"]["float"], wanted, atol=1e-5)
    assert of_cohere["embeddings"]["ubinary"] == np.packbits(wanted > 0, axis=1).tolist()
    named = await post(cluster, "/v1/embeddings", {"input": TEXTS[0], "prompt_name": "query"})
    np.testing.assert_allclose(named["data"][0]["embedding"], wanted[0], atol=1e-5)
    await post(cluster, "/v1/embeddings", {"input": "a", "prompt_name": "other"}, 400)
    coded = await post(cluster, "/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected(encoder, TEXTS[0]), atol=1e-5)
    ranked = await post(cluster, "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS, "top_n": 2})
    assert ranked["results"][0] == {"index": 0, "relevance_score": pytest.approx(1.0)}
    assert len(ranked["results"]) == 2


async def test_the_root_route_of_tei_embeds(cluster: LocalCluster, encoder: SmallModel) -> None:
    for asked in ({"inputs": TEXTS}, {"inputs": TEXTS[0], "normalize": False, "truncate": True}):
        assert await post(cluster, "/", asked) == await post(cluster, "/embed", asked)
    for asked, said in (
        ({"inputs": "a", "raw_scores": True}, "raw_scores has no meaning for a model of embeddings"),
        ({"query": "a", "texts": ["b"]}, "is no reranker, and takes inputs"),
        ({"inputs": "a", "query": "b"}, "inputs for embeddings or predictions, or query and texts"),
        ({}, "inputs for embeddings or predictions, or query and texts"),
    ):
        assert said in (await post(cluster, "/", asked, 400))["error"]["message"]


async def test_long_texts_are_refused_or_cut(cluster: LocalCluster, encoder: SmallModel) -> None:
    text = "the fox " * 3000
    assert "at most 2048" in (await post(cluster, "/v1/embeddings", {"input": text}, 400))["error"]["message"]
    cut = await post(cluster, "/v1/embeddings", {"input": text, "truncate_prompt_tokens": -1})
    assert cut["usage"]["prompt_tokens"] == 2048
    ends = await post(cluster, "/v1/embeddings", {"input": text, "truncate_prompt_tokens": 10})
    [whole] = encoder.tokenizer.encode_batch([text])
    ids = [*whole[:9], whole[-1]]
    of_ids = await post(cluster, "/v1/embeddings", {"input": ids})
    np.testing.assert_allclose(ends["data"][0]["embedding"], of_ids["data"][0]["embedding"], atol=1e-5)


async def test_an_answer_is_all_or_an_error(cluster: LocalCluster) -> None:
    await post(cluster, "/v1/embeddings", {"input": [[5, 6], [7, 10_000]]}, 400)
    await post(cluster, "/v1/embeddings", {"input": []}, 400)
    await post(cluster, "/v1/embeddings", {"input": ["a"] * 2049}, 400)
    assert len((await post(cluster, "/v1/embeddings", {"input": ["a"] * 600}))["data"]) == 600


async def test_a_batch_of_embeddings(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
        for i, text in enumerate(TEXTS)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = [str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--url", cluster.url]
    assert await asyncio.to_thread(batch, arguments) == 0
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"0", "1", "2"}
    assert all(len(answer["response"]["body"]["data"][0]["embedding"]) == 32 for answer in answers)


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_a_decoder_in_every_mode_and_after_a_cached_prefix(
    decoder: SmallModel, mode: Mode, pooling: Pooling
) -> None:
    long = "the quick brown fox jumps " * 20
    override = json.dumps({"pooling_type": pooling})

    def expected(small: SmallModel, text: str) -> np.ndarray[Any, Any]:
        return expected_of(small, text, pooling)

    async with running(decoder, mode, override) as cluster:
        for text in (long, long + "over", *TEXTS):
            found = await post(cluster, "/v1/embeddings", {"input": text})
            np.testing.assert_allclose(found["data"][0]["embedding"], expected(decoder, text), atol=2e-4)
        again = await post(cluster, "/v1/embeddings", {"input": long})
        np.testing.assert_allclose(again["data"][0]["embedding"], expected(decoder, long), atol=2e-4)
        if mode is Mode.MIXED:
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        await cluster.all_pages_back()


async def test_a_conversation_has_the_embedding_of_its_rendered_text(decoder: SmallModel) -> None:
    messages = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "a dog"}]
    text = "user: the fox\nassistant: a dog\nassistant:"
    [ids] = decoder.tokenizer.encode_batch([text], add_special_tokens=False)
    async with running(decoder) as cluster:
        found = await post(cluster, "/v1/embeddings", {"messages": messages})
        of_ids = await post(cluster, "/v1/embeddings", {"input": ids})
        await post(cluster, "/v1/embeddings", {"messages": messages, "input": "a"}, 400)
    assert found["usage"]["prompt_tokens"] == len(ids)
    np.testing.assert_allclose(found["data"][0]["embedding"], of_ids["data"][0]["embedding"], atol=1e-5)


async def test_a_cross_encoder_sees_both_texts(reranker: SmallModel) -> None:
    backend = tokenizers.Tokenizer.from_file(str(reranker.folder / "tokenizer.json"))
    wanted = []
    for text in TEXTS:
        pair = backend.encode("which animal", text)
        kinds = torch.tensor([pair.type_ids])
        assert kinds.any()
        with torch.no_grad():
            wanted.append(float(reranker.model(torch.tensor([pair.ids]), token_type_ids=kinds).logits))
    scores = (1 / (1 + np.exp(-np.array(wanted)))).tolist()
    async with running(reranker) as cluster:
        body = {"query": "which animal", "documents": TEXTS, "return_documents": True}
        ranked = await post(cluster, "/v2/rerank", body)
        tei = await post(cluster, "/rerank", {"query": "which animal", "texts": TEXTS, "raw_scores": True})
        pairs = await post(cluster, "/score", {"text_1": "which animal", "text_2": TEXTS})
        root = await post(cluster, "/", {"query": "which animal", "texts": TEXTS, "raw_scores": True})
        refused = await post(cluster, "/", {"inputs": "a"}, 400)
        of_vllm = await post(cluster, "/v1/score", {"text_1": "which animal", "text_2": TEXTS})
        for asked in (
            {"text_1": "a", "text_2": "b", "label_token_ids": [3]},
            {"query": "a", "items": ["b"], "label_token_ids": [3], "documents": ["b"]},
            {"model": "small"},
        ):
            message = (await post(cluster, "/v1/score", asked, 400))["error"]["message"]
            assert "label_token_ids" in message
            assert "text_1" in message
        rewards = await post(cluster, "/classify", {"input": TEXTS, "use_activation": False})
        await post(cluster, "/v1/embeddings", {"input": "a"}, 400)
        async with httpx.AsyncClient() as client:
            info = (await client.get(f"{cluster.url}/info")).json()
    order = sorted(range(3), key=lambda index: -scores[index])
    assert [item["index"] for item in ranked["results"]] == order
    assert [item["document"]["text"] for item in ranked["results"]] == [TEXTS[index] for index in order]
    for item in ranked["results"]:
        assert item["relevance_score"] == pytest.approx(scores[item["index"]], abs=1e-5)
    for item in tei:
        assert item["score"] == pytest.approx(wanted[item["index"]], abs=1e-4)
    assert [item["score"] for item in pairs["data"]] == pytest.approx(scores, abs=1e-5)
    assert root == tei
    assert "is a reranker, and takes query and texts" in refused["error"]["message"]
    assert of_vllm["data"] == pairs["data"]
    assert [len(item["probs"]) for item in rewards["data"]] == [1, 1, 1]
    assert "reranker" in info["model_type"]


async def test_a_classifier_answers_tei_with_its_labels(tmp_path: Path) -> None:
    def family(**of: Any) -> BertForSequenceClassification:
        return BertForSequenceClassification(BertConfig(**of, num_labels=3))

    small = with_ends(save_small_model(tmp_path, family), pairs=True)
    async with running(small) as cluster:
        for asked in ({"inputs": TEXTS}, {"inputs": TEXTS[0], "raw_scores": True}):
            assert await post(cluster, "/", asked) == await post(cluster, "/predict", asked)
        for asked, said in (
            ({"inputs": "a", "normalize": False}, "normalize has no meaning for a classifier"),
            ({"query": "a", "texts": ["b"]}, "is no reranker"),
        ):
            assert said in (await post(cluster, "/", asked, 400))["error"]["message"]


async def test_a_model_of_text_refuses_vectors(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/rerank", {"query": "a", "documents": ["b"]}),
            ("/", {"inputs": "a"}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ):
            message = (await post(cluster, path, body, 400))["error"]["message"]
            assert "--convert embed" in message
