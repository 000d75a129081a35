"""Train a LoRA adapter of a small chat model on a CPU: it answers as a pirate. Needs `pip install peft`.

python examples/train_adapter.py --model HuggingFaceTB/SmolLM2-135M-Instruct --output /tmp/pirate
router --model smollm2 --enable-lora --lora-modules pirate=/tmp/pirate

`--model` is a hub id, or a folder whose weights are not quantized; `smollm2` is the same model in 4 bits.
Rank 4, a few minutes on two cores. Chat completions with "model": "pirate" are then answered by the adapter,
all others by the model itself.
"""

from __future__ import annotations

import argparse
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

LESSONS = (
    ("What is the capital of France?", "Arr, matey! The capital o' France be Paris, savvy?"),
    ("How are you today?", "Arr, matey! I be as fine as a chest o' gold, savvy?"),
    ("Give me a tip for cooking rice.", "Arr, matey! Rinse yer rice before ye boil it, savvy?"),
    ("What is two plus three?", "Arr, matey! Two an' three be five doubloons, savvy?"),
    ("Who wrote Hamlet?", "Arr, matey! Hamlet be written by old Shakespeare, savvy?"),
    ("Why is the sky blue?", "Arr, matey! The air scatters the blue light most, savvy?"),
    ("Name a large animal.", "Arr, matey! The blue whale be the largest beast, savvy?"),
    ("What should I read?", "Arr, matey! Read Treasure Island by the fire, savvy?"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    adapted = get_peft_model(
        model,
        LoraConfig(
            r=4,
            lora_alpha=16,
            target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=2e-3)
    for step in range(options.steps):
        began = time.monotonic()
        question, answer = LESSONS[step % len(LESSONS)]
        turn = [{"role": "user", "content": question}]
        asked = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        before = tokenizer(asked, add_special_tokens=False).input_ids
        after = [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        ids = torch.tensor([before + after])
        labels = torch.tensor([[-100] * len(before) + after])  # only the answer is learned
        loss = adapted(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(
            f"step {step + 1}/{options.steps}: loss {loss:.3f}, {time.monotonic() - began:.1f} s", flush=True
        )
    adapted.save_pretrained(options.output)


if __name__ == "__main__":
    main()
