"""Three steps of a trainer through a client of SkyRL, verl or TRL: `trainer_steps.py CLIENT URL FOLDER`.

FOLDER has step-1.safetensors and so on, the weights after each step. Prints the answers before the first
step and after each, as JSON. What they import to start a server is stood in for;
their code is as published.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

STEPS: Final = 3
PROMPT: Final = list(range(5, 45))
COUNT: Final = 8


def stand_in(name: str, **content: Any) -> None:
    """A module, and the packages above it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            module = ModuleType(path)
            module.__spec__, module.__path__ = ModuleSpec(path, None), []
            sys.modules[path] = module
    for key, value in content.items():
        setattr(sys.modules[name], key, value)


def bare(*packages: str) -> None:
    """Packages without what their `__init__` imports, such as Ray and tensordict."""
    place = importlib.util.find_spec(packages[0])
    assert place is not None
    assert place.submodule_search_locations
    for name in packages:
        module = ModuleType(name)
        module.__path__ = [str(Path(place.submodule_search_locations[0], *name.split(".")[1:]))]
        sys.modules[name] = module


async def skyrl(url: str, weights: list[bytes]) -> list[list[int]]:
    bare(
        "skyrl",
        "skyrl.backends",
        "skyrl.backends.skyrl_train",
        "skyrl.backends.skyrl_train.inference_servers",
    )
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient

    client = RemoteInferenceClient(url, [url], data_parallel_size=1, model_name="small")

    async def ask() -> list[int]:
        sampling = {"max_tokens": COUNT, "temperature": 0.0, "ignore_eos": True, "logprobs": 0}
        more = {"include_stop_str_in_output": True, "skip_special_tokens": True}
        answer = await client.generate({"prompt_token_ids": [PROMPT], "sampling_params": sampling | more})
        assert answer["stop_reasons"] == ["length"]
        assert len(answer["response_logprobs"][0]) == COUNT
        sample = {"prompt": {"chunks": [{"tokens": PROMPT}]}, "include_prompt_logprobs": True}
        told = await client.sample({"json": {**sample, "sampling_params": {"max_tokens": 2, "seed": 1}}})
        assert len(told["prompt_logprobs"]) == len(PROMPT)
        return list(answer["response_ids"][0])

    async def step(tensors: bytes) -> None:
        await client.pause_generation()
        await client.sleep(level=1)
        await client.wake_up(tags=["weights"])
        await client.update_named_weights({"tensors": base64.b64encode(tensors).decode()})
        await client.wake_up(tags=["kv_cache"])
        await client.reset_prefix_cache()
        await client.resume_generation()

    async with client:
        return await steps(ask, step, weights)


async def verl(url: str, weights: list[bytes]) -> list[list[int]]:
    bare("verl", "verl.workers", "verl.workers.rollout", "verl.workers.rollout.sglang_rollout")
    stand_in("sglang.srt.entrypoints.EngineBase", EngineBase=object)
    stand_in("sglang.srt.entrypoints.http_server", launch_server=None)
    stand_in("sglang.srt.managers.io_struct", UpdateWeightsFromTensorReqInput=SimpleNamespace)
    stand_in("sglang.srt.server_args", ServerArgs=SimpleNamespace)
    stand_in("sglang.srt.utils", kill_process_tree=None)
    from verl.workers.rollout.sglang_rollout.http_server_engine import HttpServerAdapter

    host, port = url.removeprefix("http://").split(":")
    client = HttpServerAdapter(launch_server=False, host=host, port=int(port), node_rank=0)

    async def ask() -> list[int]:
        sampling = {"max_new_tokens": COUNT, "temperature": 0.0, "ignore_eos": True}
        answer = await asyncio.to_thread(
            client.generate, input_ids=PROMPT, sampling_params=sampling, return_logprob=True
        )
        assert len(answer["meta_info"]["output_token_logprobs"]) == COUNT
        return list(answer["output_ids"])

    async def step(tensors: bytes) -> None:
        await asyncio.to_thread(client.release_memory_occupation, ["kv_cache"])
        asked = SimpleNamespace(serialized_named_tensors=[tensors], load_format=None, flush_cache=True)
        done = await asyncio.to_thread(client.update_weights_from_tensor, asked)
        assert done["success"]
        await asyncio.to_thread(client.resume_memory_occupation, ["kv_cache"])
        assert await asyncio.to_thread(client.flush_cache)
        await asyncio.to_thread(client.abort_request, "", True)

    return await steps(ask, step, weights)


async def trl(url: str, weights: list[bytes]) -> list[list[int]]:
    bare("trl", "trl.generation")
    present = {"is_requests_available": lambda: True, "is_vllm_available": lambda min_version="0": True}
    stand_in("trl.import_utils", **present)
    stand_in("vllm.utils.network_utils", get_ip=None)
    stand_in("vllm.distributed.weight_transfer.nccl_common", trainer_init=None)
    stand_in("vllm.distributed.weight_transfer.packed_tensor", packed_nccl_broadcast_producer=None)
    from trl.generation.vllm_client import VLLMClient

    client = await asyncio.to_thread(VLLMClient, url)
    assert client.get_world_size() > 0
    with contextlib.suppress(RuntimeError):  # it has read that there is no engine for process groups
        client.init_communicator("cpu")
        raise AssertionError("its process group was joined")

    async def ask() -> list[int]:
        more = {"ignore_eos": True}
        answer = await asyncio.to_thread(
            client.generate, [PROMPT], max_tokens=COUNT, temperature=0.0, logprobs=0, generation_kwargs=more
        )
        assert answer["prompt_ids"] == [PROMPT]
        assert len(answer["logprobs"][0]) == COUNT
        return list(answer["completion_ids"][0])

    def send(tensors: bytes) -> None:
        with client.weight_update():
            part = {"update_info": {"tensors": base64.b64encode(tensors).decode()}}
            client._post(f"{url}/update_weights", json=part)
        client.reset_prefix_cache()

    return await steps(ask, partial(asyncio.to_thread, send), weights)


async def steps(
    ask: Callable[[], Awaitable[list[int]]], step: Callable[[bytes], Awaitable[None]], weights: list[bytes]
) -> list[list[int]]:
    answers = [await ask()]
    for tensors in weights:
        await step(tensors)
        answers.append(await ask())
    return answers


if __name__ == "__main__":
    client, url, folder = sys.argv[1:]
    files = [Path(folder, f"step-{number}.safetensors").read_bytes() for number in range(1, STEPS + 1)]
    print(json.dumps(asyncio.run({"skyrl": skyrl, "verl": verl, "trl": trl}[client](url, files))))
