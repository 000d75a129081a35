"""What the router prints of its workers' sizes at start."""

from __future__ import annotations

from router.cli.sizes import sizes
from rpc.baton.v1 import worker_pb2


def info(worker_id: str, **more: float) -> worker_pb2.WorkerInfo:
    settings = {"page_size": 16, "num_pages": 1000, "max_model_len": 8192, "max_running_requests": 256}
    return worker_pb2.WorkerInfo(worker_id=worker_id, **{**settings, **more})


def test_a_pause_target_stands_beside_the_mean_that_it_belongs_to() -> None:
    (line,) = sizes([info("decode-0", step_target_s=0.02, pause_target_s=0.03)])
    assert "ITL target 20 ms (pauses of 30 ms)" in line


def test_equal_workers_share_a_line_with_pool_context_chunk_target_and_graphs() -> None:
    gpu = {"chunked_prefill_size": 8192, "step_target_s": 0.02, "cuda_graph_max_bs": 256}
    workers = [info("prefill-0"), *(info(f"decode-{k}", **gpu, cuda_graph_max_tokens=2048) for k in range(3))]
    prefill, decode = sizes(workers)
    assert prefill == (
        "prefill-0: KV pool 16,000 tokens in pages of 16, context 8,192, chunking off, 256 running requests,"
        " no ITL target, no CUDA graphs"
    )
    assert decode == (
        "decode-0 to decode-2: KV pool 16,000 tokens in pages of 16, context 8,192, 8,192 tokens a step, 256"
        " running requests, ITL target 20 ms, CUDA graphs up to 256 decodes and 2,048 prefill tokens"
    )
