"""`baton.LLM`: prompts in, answers out, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton import LLM, LoRARequest, SamplingParams
from tests.faults.support.small_model import SmallModel
from tests.unit.engine.adapters.peft_oracle import greedy, merged, save_adapter

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(small: SmallModel) -> Iterator[LLM]:
    with LLM(str(small.folder), device="cpu", dtype="float32", kv_pool_tokens=2048) as llm:
        yield llm


def test_greedy_answers_are_those_of_transformers_in_the_order_of_the_prompts(
    llm: LLM, small: SmallModel
) -> None:
    questions = [small.question(i, length=5 + 20 * i, max_tokens=12) for i in range(4)]
    answers = llm.generate([q.prompt for q in questions], GREEDY, progress=False)
    assert [a.outputs[0].token_ids for a in answers] == [small.answer(q) for q in questions]
    assert [a.outputs[0].text for a in answers] == [small.text(small.answer(q)) for q in questions]
    assert all(a.outputs[0].finish_reason == "length" for a in answers)


def test_text_and_its_token_ids_are_the_same_prompt(llm: LLM) -> None:
    [text] = llm.generate("one two three", GREEDY, progress=False)
    [ids] = llm.generate([{"prompt_token_ids": text.prompt_token_ids}], GREEDY, progress=False)
    assert text.prompt == "one two three"
    assert ids.prompt is None
    assert ids.outputs[0].text == text.outputs[0].text


def test_n_answers_of_a_seed_differ_and_come_again(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    first, second = (llm.generate(["once"], params, progress=False)[0].outputs for _ in range(2))
    assert len({tuple(o.token_ids) for o in first}) == 3
    assert [o.token_ids for o in first] == [o.token_ids for o in second]


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    [whole] = llm.generate(["one two"], GREEDY, progress=False)
    text = whole.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop)
    [stopped] = llm.generate(["one two"], params, progress=False)
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)


def test_logprobs_name_the_chosen_token_and_the_most_likely(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    [answer] = llm.generate(["one"], params, progress=False)
    output = answer.outputs[0]
    assert output.logprobs is not None
    for token, reported in zip(output.token_ids, output.logprobs, strict=True):
        assert reported[token].rank == 1
        assert len(reported) == 2
    assert output.cumulative_logprob == sum(
        r[t].logprob for t, r in zip(output.token_ids, output.logprobs, strict=True)
    )


def test_a_conversation_is_rendered_by_the_models_template(llm: LLM) -> None:
    [answer] = llm.chat([{"role": "user", "content": "hello"}], GREEDY, progress=False)
    assert answer.prompt == "user: hello\nassistant:"
    both = llm.chat([[{"role": "user", "content": "hello"}]] * 2, GREEDY, progress=False)
    assert [a.outputs[0].text for a in both] == [answer.outputs[0].text] * 2


def test_parameters_may_differ_from_prompt_to_prompt(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 5)]
    answers = llm.generate(["a", "b"], each, progress=False)
    assert [len(a.outputs[0].token_ids) for a in answers] == [2, 5]


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ("hello", SamplingParams(temperature=9), "temperature"),
        ("hello", SamplingParams(n=0), "n must be"),
        ([1] * 3000, SamplingParams(), "3000 tokens"),
        ([10**9], SamplingParams(), "out of range"),
        ("hello", [SamplingParams()] * 2, "1 prompts"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(
    llm: LLM, prompt: object, params: object, complaint: str
) -> None:
    steps = llm._engine.stats().steps
    with pytest.raises(ValueError, match=complaint):
        llm.generate([prompt], params, progress=False)  # type: ignore[list-item, arg-type]
    assert llm._engine.stats().steps == steps


def test_an_interrupted_call_leaves_nothing_in_the_engine(llm: LLM) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    sequences = llm._sequences([2, 3, 4], SamplingParams(n=2, max_tokens=9, ignore_eos=True))
    with pytest.raises(KeyboardInterrupt):
        llm._runner.run(sequences, {}, interrupt)
    assert not llm._engine.has_work
    llm._engine.check_pages()


def test_a_request_that_fails_keeps_the_answers_of_the_others(small: SmallModel) -> None:
    questions = [small.question(i, length=6, max_tokens=12) for i in range(3)]
    unused = max(set(range(256)) - {t for q in questions for t in (*q.prompt, *small.answer(q))})
    with LLM(str(small.folder), device="cpu", dtype="float32", kv_pool_tokens=2048) as llm:
        weights = llm._engine.runner._model.embed.weight.data  # type: ignore[attr-defined]
        weights[unused] = torch.nan
        prompts = [questions[0].prompt, [unused, 3, 4], questions[1].prompt, questions[2].prompt]
        answers = llm.generate(prompts, GREEDY, progress=False)
    failed = answers.pop(1).outputs[0]
    assert (failed.finish_reason, failed.token_ids) == ("error", [])
    assert failed.error is not None
    assert "finite" in failed.error
    assert [a.outputs[0].token_ids for a in answers] == [small.answer(q) for q in questions]
    assert [a.outputs[0].error for a in answers] == [None] * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.02},
        {"preset": "vllm", "max_num_batched_tokens": 64, "long_prefill_token_threshold": 7},
        {"preset": "roseinfer", "prefill_chunk_size": 32, "max_total_tokens": 2048},
    ],
    ids=["the guide's", "vllm", "roseinfer"],
)
def test_settings_under_other_names_change_the_plan_and_not_the_tokens(
    small: SmallModel, settings: dict[str, Any]
) -> None:
    questions = [small.question(i, length=40 + 30 * i, max_tokens=8) for i in range(3)]
    with LLM(str(small.folder), device="cpu", dtype="float32", **settings) as llm:
        answers = llm.generate([q.prompt for q in questions], GREEDY, progress=False)
        scheduler = llm._engine.config.scheduler
    assert [a.outputs[0].token_ids[:8] for a in answers] == [small.answer(q) for q in questions]
    assert scheduler.chunk_budget == settings.get("max_num_batched_tokens")


def test_settings_that_are_wrong_name_the_flag() -> None:
    with pytest.raises(ValueError, match="--page-size"):
        LLM("smollm2", page_size=0)


def test_decisions_are_those_of_transformers(llm: LLM, small: SmallModel) -> None:
    question = {
        "type": "choice",
        "instructions": "Which?",
        "choices": [{"value": "red"}, {"value": "blue", "description": "as the sky"}],
    }
    level = {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]}
    state = "one two three\n" * 40
    choice, score = llm.decide(state, [question, level])
    prompt = (
        f"user: {state.rstrip()}\n\nWhich?\nA. red\nB. blue: as the sky\n"
        "Answer with the letter of one option alone.\nassistant:"
    )
    [ids] = small.tokenizer.encode_batch([prompt], add_special_tokens=False)
    names = (" A", " B") if None not in small.tokenizer.tokens_after(prompt, (" A", " B")) else ("A", "B")
    labels = small.tokenizer.tokens_after(prompt, names)
    with torch.inference_mode():
        row = small.model(torch.tensor([ids])).logits[0, -1].softmax(-1)[list(labels)]
    assert choice["x_label_mass"] == pytest.approx(float(row.sum()), rel=1e-4)
    shares = [each["probability"] for each in choice["probabilities"]]
    assert shares == pytest.approx((row / row.sum()).tolist(), rel=1e-4)
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    assert llm.decide([{"role": "user", "content": state}], [question]) == [choice]
    with pytest.raises(ValueError, match="questions"):
        llm.decide(state, [])


def test_scores_are_those_of_transformers(llm: LLM, small: SmallModel) -> None:
    found = llm.score([5, 6, 7], [[8, 9], [10]], [11, 12])
    for item, scores in zip([[8, 9], [10]], found, strict=True):
        with torch.inference_mode():
            row = small.model(torch.tensor([[5, 6, 7, *item]])).logits[0, -1].softmax(-1)
        assert scores == pytest.approx(row[[11, 12]].tolist(), rel=1e-4)
    [[one, other]] = llm.score("one two", ["three"], [11, 12], apply_softmax=True, item_first=True)
    assert one + other == pytest.approx(1.0)
    for labels in ([], [small.model.config.vocab_size]):
        with pytest.raises(ValueError, match="label"):
            llm.score([5], [[6]], labels)


def test_each_prompt_gets_the_answer_of_its_adapter(small: SmallModel, tmp_path: Path) -> None:
    style = save_adapter(small.folder, tmp_path / "style", 1)
    prompt = small.question(1, length=20, max_tokens=6).prompt
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    settings = {"device": "cpu", "dtype": "float32", "kv_pool_tokens": 2048}
    with LLM(str(small.folder), enable_lora=True, **settings) as llm:
        lora = LoRARequest("style", 1, str(style))
        answers = llm.generate([prompt, prompt], sampling, lora_request=[None, lora], progress=False)
        with pytest.raises(ValueError, match="cannot be read"):
            llm.generate(prompt, lora_request=LoRARequest("absent", 2, "/nowhere"), progress=False)
    models = merged(small.folder, None), merged(small.folder, style)
    assert [a.outputs[0].token_ids for a in answers] == [greedy(model, prompt, 6) for model in models]
    with LLM(str(small.folder), **settings) as llm, pytest.raises(ValueError, match="takes no adapters"):
        llm.generate(prompt, lora_request=lora, progress=False)
