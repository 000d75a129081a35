"""An application of Ray Serve with one model: what its clients see, printed as JSON.

`python ray_serve_app.py FOLDER PORT`, in an environment with Ray Serve. Reads prompts of token ids from
standard input. Each is answered whole and streamed; then the replica is killed, and the first is asked again.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import ray
from ray import serve

from baton.ray import build_openai_app

TOKENS = 24


def main(folder: str, port: int) -> dict[str, Any]:
    prompts = json.load(sys.stdin)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=True)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    model = {"model_id": "small", "model_source": folder}
    args = {
        "llm_configs": [{"model_loading_config": model, "engine_kwargs": {"max_num_seqs": 16}}],
        "device": "cpu",
        "dtype": "float32",
        "kv-pool-tokens": 4096,
        "worker-cpus": 1,
    }
    serve.run(build_openai_app(args))
    url = f"http://127.0.0.1:{port}"
    seen: dict[str, Any] = {"models": json.load(urlopen(f"{url}/v1/models"))["data"]}
    seen["whole"] = [json.loads(ask(url, prompt))["choices"][0]["token_ids"] for prompt in prompts]
    seen["streamed"] = [streamed(ask(url, prompt, stream=True)) for prompt in prompts]
    try:
        ask(url, prompts[0], model="other")
    except HTTPError as error:
        seen["refusal"] = error.code
    seen["chunks_of_a_stream"] = chunks(url, prompts[0])
    kill_replica()
    seen["after"] = again(url, prompts[0])
    return seen


def ask(url: str, prompt: list[int], **options: Any) -> bytes:
    with urlopen(request(url, prompt, **options), timeout=60) as answer:
        return answer.read()


def request(url: str, prompt: list[int], **options: Any) -> Request:
    body = {
        "model": "small",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **options,
    }
    return Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})


def streamed(body: bytes) -> list[int]:
    events = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return [token for choice in choices for token in choice.get("token_ids") or ()]


def chunks(url: str, prompt: list[int]) -> int:
    """Reads of a stream that brought something: more than one if the answer is not held back."""
    with urlopen(request(url, prompt, stream=True, max_tokens=300), timeout=60) as answer:
        return sum(bool(piece) for piece in iter(lambda: answer.read1(1 << 16), b""))


def kill_replica() -> None:
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if "LLMServer" in actor["name"]:
            ray.kill(ray.get_actor(actor["name"], actor["namespace"]), no_restart=False)


def again(url: str, prompt: list[int]) -> dict[str, Any]:
    """The answer of the next replica, and how much of the prompt was in the cache of the worker."""
    deadline = time.monotonic() + 90
    while True:
        try:
            found = json.loads(ask(url, prompt))
        except (HTTPError, URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            usage = found["usage"]["prompt_tokens_details"]
            return {"tokens": found["choices"][0]["token_ids"], "cached": usage["cached_tokens"]}


if __name__ == "__main__":
    seen = main(sys.argv[1], int(sys.argv[2]))
    print("SEEN", json.dumps(seen), flush=True)
    serve.shutdown()
    ray.shutdown()
