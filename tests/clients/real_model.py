"""A real model behind the frontends, in this process: one request at a time, without workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from engine.core.request import Request
from engine.loop.engine import Engine
from engine.modeling.loader.checkpoint import resolve
from router.dispatch.token_stream import Delta
from tests.engine_config import engine_config
from tests.integration.frontends import Call
from worker.session.convert import FINISH_REASONS, sampling_from_proto

MAX_MODEL_LEN = 2048


def small_engine() -> Engine:
    """SmolLM2 on the CPU."""
    return Engine(
        engine_config(
            model_path=resolve("smollm2").path,
            device="cpu",
            dtype="float32",
            page_size=16,
            num_pages=2 * MAX_MODEL_LEN // 16,
            max_model_len=MAX_MODEL_LEN,
            chunk_budget=512,
            overlap=False,
        )
    )


def engine_script(engine: Engine) -> Callable[[Call], Iterator[Delta]]:
    ids = count(1)

    def script(call: Call) -> Iterator[Delta]:
        request = Request(id=next(ids), prompt=call.prompt, sampling=sampling_from_proto(call.sampling))
        engine.submit(request)
        try:
            while engine.has_work:
                output = engine.step()
                assert not output.failed, output.failed
                for token in output.tokens:
                    yield Delta(
                        token_ids=[token.token],
                        finish=FINISH_REASONS[token.finish],
                        stop_token=token.token if token.is_stop else None,
                    )
        finally:
            engine.abort(request.id)

    return script
