"""The command line and the configuration file of `router`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.choices import Device, Mode, NodePlacement, Routing, TransportChoice
from router.config.flags.command_line import parse
from router.config.flags.values import ConfigError
from router.config.settings import RouterConfig
from router.config.table import SETTINGS


def problems(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    return "\n".join(caught.value.problems)


def test_a_model_is_all_that_is_needed() -> None:
    assert parse(["--model", "smollm2"]) == RouterConfig(model="smollm2")


def test_every_flag_of_the_contract_is_known() -> None:
    contract = """--mode --model --served-model-name --prefill-workers --decode-workers --host --http-port
        --grpc-port --device --dtype --page-size --kv-pool-tokens --kv-memory-fraction --chunked-prefill-size
        --max-running-requests --max-model-len --kv-transport --ray-address --log-level
        --disable-radix-cache"""
    assert set(contract.split()) <= {setting.flag for setting in SETTINGS.values()}
    defaults = RouterConfig()
    assert (defaults.frontend.http_port, defaults.frontend.grpc_port) == (30000, 50051)
    assert defaults.page_size == 16


def test_flags_become_typed_values() -> None:
    argv = (
        "--model m --mode disagg --prefill-workers 2 --decode-workers 3 --device cpu --page-size 64"
        " --chunked-prefill-size -1 --kv-transport ucxx --kv-memory-fraction 0.5 --disable-radix-cache"
        " --routing round-robin"
    )
    config = parse(argv.split())
    assert config == RouterConfig(
        model="m",
        mode=Mode.DISAGG,
        prefill_workers=2,
        decode_workers=3,
        device=Device.CPU,
        page_size=64,
        chunked_prefill_size=-1,
        kv_transport=TransportChoice.UCXX,
        kv_memory_fraction=0.5,
        disable_radix_cache=True,
        routing=Routing.ROUND_ROBIN,
    )


def test_disagg_has_a_prefill_worker_by_default_and_mixed_has_none() -> None:
    assert parse(["--model", "m", "--mode", "disagg"]).num_prefill_workers == 1
    assert parse(["--model", "m", "--mode", "mixed"]).num_prefill_workers == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", ["--model", "smollm2"]),
        ("--model m --mode both", ["--mode", "'both'", "mixed, disagg"]),
        ("--model m --http-port web", ["--http-port", "'web'", "whole number"]),
        ("--model m --http-port 70000", ["--http-port 70000", "65535"]),
        ("--model m --http-port 8000 --grpc-port 8000", ["--http-port", "--grpc-port", "8000"]),
        ("--model m --decode-workers 0", ["--decode-workers 0", "1 or more"]),
        ("--model m --prefill-workers 2", ["--prefill-workers 2", "--mode disagg"]),
        ("--model m --mode disagg --prefill-workers 0", ["--prefill-workers 0", "--mode mixed"]),
        ("--model m --page-size 0", ["--page-size 0"]),
        (
            "--model m --page-size 24 --chunked-prefill-size 2048",
            ["--page-size 24 does not divide --chunked-prefill-size 2048", "use 1, 8, 16, 32, 64 or 128"],
        ),
        ("--model m --chunked-prefill-size 0", ["--chunked-prefill-size 0", "-1"]),
        (
            "--model m --mode disagg --prefill-chunked-prefill-size 100",
            ["does not divide --prefill-chunked-prefill-size 100"],
        ),
        (
            "--model m --prefill-chunked-prefill-size 2048",
            ["--prefill-chunked-prefill-size 2048", "use --chunked-prefill-size"],
        ),
        ("--model m --itl-target-ms -5", ["--itl-target-ms -5", "0 or more"]),
        ("--model m --pause-target-ms 30", ["--pause-target-ms 30", "--mode adaptive"]),
        ("--model m --mode adaptive --pause-target-ms 30", ["--pause-target-ms 30", "needs --itl-target-ms"]),
        (
            "--model m --mode adaptive --itl-target-ms 20 --pause-target-ms 15",
            ["--pause-target-ms 15", "at least --itl-target-ms 20"],
        ),
        (
            "--model m --kv-pool-tokens 100 --page-size 128",
            ["--kv-pool-tokens 100", "--page-size 128"],
        ),
        (
            "--model m --kv-pool-tokens 1000 --kv-memory-fraction 0.5",
            ["--kv-pool-tokens", "give one of them"],
        ),
        ("--model m --kv-memory-fraction 1.5", ["--kv-memory-fraction 1.5"]),
        ("--model m --mode disagg --kv-transport loopback", ["--kv-transport loopback", "nixl"]),
        ("--model m --speculative model", ["--speculative model needs --speculative-model"]),
        (
            "--model m --speculative ngram --speculative-model n",
            ["--speculative-model n has no effect with --speculative ngram", "auto"],
        ),
        (
            "--model m --speculative mtp --speculative-model n",
            ["--speculative-model n has no effect with --speculative mtp", "auto"],
        ),
        ("--model m --speculative-config mtp", ["--speculative-config mtp: it takes a JSON object"]),
        ('--model m --speculative-config {"disable":1}', ["disable has no equivalent; use method"]),
        ("--model m --handoff-timeout 0", ["--handoff-timeout 0", "above 0"]),
        ("--model m --handoff-timeout nan", ["--handoff-timeout nan"]),
        ("--model m --max-attempts 0", ["--max-attempts 0"]),
        ("--model m --device cpu --dtype float16", ["--dtype float16", "--device cpu", "bfloat16"]),
        ("--model m --decode-worker 2", ["--decode-worker", "did you mean --decode-workers?"]),
        ("--model m --http-port", ["--http-port"]),
        ("--model m --tls-cert a.pem", ["--tls-cert", "--tls-key", "both"]),
        ("--model m --http-keep-alive 0", ["--http-keep-alive 0"]),
        ("--model m --cors-origins chat.example.com", ["--cors-origins chat.example.com", "https://"]),
        ("--model m --cors-origins http://a,https://b/", ["--cors-origins https://b/ "]),
        ("--model m --separate-tenants", ["--separate-tenants", "--api-key-file"]),
        ("--model m --max-requests-per-key 3", ["--max-requests-per-key 3", "--api-key-file"]),
        (
            "--model m --api-key-file keys --max-requests-per-key 3 --frontends 4",
            ["--max-requests-per-key 3", "--frontends 4"],
        ),
        ("--model m --max-body-bytes 0", ["--max-body-bytes 0", "1 or more"]),
        ("--model m --max-logprobs 21", ["--max-logprobs 21", "0 to 20"]),
        ("--model m --tensor-parallel-size 0", ["--tensor-parallel-size 0", "2 or 4"]),
        (
            "--model m --tensor-parallel-size 4 --expert-parallel-size 3",
            ["--expert-parallel-size 3 does not divide --tensor-parallel-size 4", "divisor"],
        ),
        (
            "--model m --mode disagg --prefill-workers 1 --prefill-expert-parallel-size 2",
            ["--prefill-expert-parallel-size 2 does not divide --tensor-parallel-size 1", "divisor"],
        ),
        (
            "--model m --prefill-tensor-parallel-size 2",
            ["--prefill-tensor-parallel-size 2", "--mode mixed", "--tensor-parallel-size"],
        ),
        (
            "--model m --prefill-kv-pool-tokens 4096",
            ["--prefill-kv-pool-tokens 4096", "--mode mixed", "use --kv-pool-tokens"],
        ),
        (
            "--model m --mode disagg --decode-kv-pool-tokens 64 --page-size 128",
            ["--decode-kv-pool-tokens 64", "--page-size 128"],
        ),
        (
            "--model m --decode-kv-pool-tokens 64 --decode-kv-memory-fraction 0.5",
            ["--decode-kv-pool-tokens", "--decode-kv-memory-fraction", "give one of them"],
        ),
        ("--model m --decode-kv-memory-fraction 2", ["--decode-kv-memory-fraction 2"]),
        ("--model m --decode-cuda-graph-max-bs -1", ["--decode-cuda-graph-max-bs -1"]),
        ("--model m --device cpu --decode-accelerator H100", ["--decode-accelerator H100", "--device"]),
        ("--model m --preset orca", ["--preset", "'orca'", "baton, sglang, vllm, roseinfer"]),
        ("--model m --schedule-policy sjf", ["--schedule-policy", "'sjf'", "fcfs, lpm"]),
        ("--model m --long-prefill-token-threshold 4%", ["--long-prefill-token-threshold 4%", "auto"]),
        ("--model m --long-prefill-token-threshold -1", ["--long-prefill-token-threshold -1", "0 for no"]),
        ("--model m --long-prefill-token-threshold 0 --max-long-partial-prefills 1", ["means nothing"]),
        ("--model m --schedule-conservativeness 0", ["--schedule-conservativeness 0", "above 0"]),
        ("--model m --max-num-partial-prefills 0", ["--max-num-partial-prefills 0", "1 or more"]),
        ("--model m --max-long-partial-prefills 1", ["without --long-prefill-token-threshold"]),
        ("--model m --priority-preemption-threshold 10", ["needs --schedule-policy priority"]),
        ("--model m --disable-chunked-prefill --chunked-prefill-size -1", ["give one of them"]),
        ("--model m --chunked-prefill-size 100", ["use 1, or a step of 96 or 112"]),
        ("--model m --chunked-prefill-size 9999999999", ["--chunked-prefill-size 9999999999", "1048576"]),
        ("--model m --max-running-requests 9999999999", ["--max-running-requests 9999999999", "65536"]),
        ("--model m --fair-partial-prefills", ["--max-num-partial-prefills 2"]),
        ("--model m --preset sglang --fair-partial-prefills", ["--max-num-partial-prefills 2"]),
        (
            "--model m --fair-share-tokens 9 --schedule-policy lpm",
            ["--fair-share-tokens 9", "--schedule-policy lpm", "use shortest"],
        ),
        ("--model m --low-priority-values-first", ["needs --schedule-policy priority"]),
        (
            "--model m --schedule-policy priority --priority-preemption-threshold -1",
            ["--priority-preemption-threshold -1", "0 or more"],
        ),
        ("--model m --aging-tokens 9", ["--aging-tokens 9", "--schedule-policy shortest"]),
        ("--model m --preset vllm --schedule-conservativeness 2", ["means nothing with --preset vllm"]),
        ("--model m --kv-events-topic t", ["--kv-events-topic t", "without --kv-events"]),
        ("--model m --kv-events 5557", ["--kv-events 5557", "tcp://*:5557"]),
        ("--model m --kv-events tcp://*:1 --kv-events-replay tcp://*:1", ["both tcp://*:1"]),
        ("--model m --kv-events tcp://*:1 --frontends 2", ["--kv-events tcp://*:1", "--frontends is 2"]),
        ("--model m --kv-events tcp://*:1 --disable-radix-cache", ["with --disable-radix-cache"]),
        ("--model m --host-kv-gb -1", ["--host-kv-gb -1", "0 or more"]),
        ("--model m --disk-kv-dir /kv", ["--disk-kv-dir /kv", "needs --host-kv-gb"]),
        ("--model m --host-kv-gb 4 --disable-radix-cache", ["--host-kv-gb 4", "--disable-radix-cache"]),
        ("--model m --long-prefill-token-threshold 8", ["less than a page", "--page-size 16 or more"]),
        ("--model m --max-prefill-tokens 8", ["less than a page", "--page-size 16 or more"]),
        (
            "--model m --max-num-partial-prefills 1 --max-long-partial-prefills 2"
            " --long-prefill-token-threshold 64",
            ["--max-long-partial-prefills 2", "--max-num-partial-prefills 1"],
        ),
        (
            "--model m --disable-chunked-prefill --long-prefill-token-threshold 64",
            ["--long-prefill-token-threshold 64", "--disable-chunked-prefill computes whole"],
        ),
        (
            "--model m --chunked-prefill-size -1 --itl-target-ms 20",
            ["--itl-target-ms 20", "--chunked-prefill-size -1 computes prompts whole"],
        ),
        (
            "--model m --batching prefill-first --itl-target-ms 20",
            ["--itl-target-ms 20", "--batching prefill-first"],
        ),
        (
            "--model m --disable-chunked-prefill --chunked-prefill-size 512 --max-model-len 8192",
            ["--chunked-prefill-size 512", "--max-model-len 8192"],
        ),
        ("--model m --kv-pool-tokens 8", ["--kv-pool-tokens 8", "--page-size 16"]),
        ("--model m --worker-network 10.1.2.3/16", ["--worker-network 10.1.2.3/16", "10.1.0.0/16"]),
    ],
)
def test_a_mistake_is_named_with_its_flag_its_value_and_the_way_out(argv: str, words: list[str]) -> None:
    message = problems(*argv.split())
    for word in words:
        assert word in message


def test_all_problems_are_reported_at_once() -> None:
    assert len(problems("--decode-workers", "0", "--page-size", "0").splitlines()) == 3


def test_a_file_takes_the_same_names_and_flags_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("model: m\npage-size: 32\nmode: disagg\ndrain_timeout: 5\nmax-model-len: null\n")
    config = parse(["--config", str(file), "--page-size", "64"])
    assert (config.mode, config.page_size, config.operation.drain_timeout) == (Mode.DISAGG, 64, 5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("page-sise: 16", ["page-sise", "did you mean page-size?"]),
        ("page-size: big", ["page-size", "'big'", "whole number"]),
        ("page-size: true", ["page-size", "True"]),
        ("page-size: null", ["page-size", "None"]),
        ("mode: both", ["mode", "mixed, disagg"]),
        ("- model", ["must hold settings"]),
        ("a: [", ["not YAML"]),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_setting(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    message = problems("--config", str(file), "--model", "m")
    assert str(file) in message
    for word in words:
        assert word in message


def test_a_missing_file_is_a_message_too(tmp_path: Path) -> None:
    assert "No such file" in problems("--config", str(tmp_path / "none.yaml"))


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "examples:" in text
    for setting in SETTINGS.values():
        assert setting.flag in text


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "page-size": st.integers(-5, 5000),
            "chunked-prefill-size": st.integers(-5, 5000),
            "kv-pool-tokens": st.integers(-5, 10**9),
            "max-model-len": st.integers(-5, 10**9),
            "decode-workers": st.integers(-5, 100),
            "prefill-workers": st.integers(-5, 100),
            "mode": st.sampled_from(["mixed", "disagg", "adaptive"]),
        },
    )
)
def test_any_numbers_end_in_a_sound_configuration_or_in_messages(values: dict[str, object]) -> None:
    argv = ["--model=m", *(f"--{name}={value}" for name, value in values.items())]
    try:
        config = parse(argv)
    except ConfigError:
        return
    assert config.decode_workers >= 1
    assert config.chunked_prefill_size in (None, -1) or config.chunked_prefill_size % config.page_size == 0
    assert config.kv_pool_tokens is None or config.kv_pool_tokens >= config.page_size


def test_flags_about_a_cluster_are_checked_before_it_is_joined() -> None:
    good = (
        "--model m --ray-address auto --wait-for-nodes 3 --placement strict-spread --worker-ports 11000-11099"
    )
    config = parse([*good.split(), "--worker-env", "UCX_TLS=rc,cuda_copy NCCL_DEBUG=INFO"])
    assert config.cluster.placement is NodePlacement.STRICT_SPREAD
    assert "--ray-address" in problems("--model", "m", "--wait-for-nodes", "2")
    assert "1 or more" in problems("--model", "m", "--ray-address", "auto", "--wait-for-nodes", "0")
    assert "one of pack, spread" in problems("--model", "m", "--placement", "anywhere")
    assert "--worker-env UCX_TLS is not" in problems("--model", "m", "--worker-env", "UCX_TLS")
    assert "--worker-ports 1-9" in problems("--model", "m", "--worker-ports", "1-9")


def test_a_wrong_http_port_is_one_problem() -> None:
    [problem] = problems("--model", "m", "--http-port", "99999").splitlines()
    assert "--http-port 99999 is not a port" in problem
    assert "--admin-port 65536" in problems("--model", "m", "--http-port", "65535")
