"""Settings of operation: drain, admin endpoint, logs, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from router.config.choices import LogFormat, LogLevel, MetricNames
from router.config.option import Option

__all__ = ["OperationSettings"]

_GROUP: Final = "operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettings:
    drain_timeout: Annotated[
        float,
        Option(_GROUP, "how long running requests may take to finish after SIGTERM", "SECONDS", least=0),
    ] = 30.0
    admin_port: Annotated[
        int | None,
        Option(
            _GROUP,
            "loopback port for `router workers`, `explain`, `drain` and `restart`; 0 picks a free one"
            " (default: --http-port + 1)",
            "PORT",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None,
        Option(
            _GROUP,
            "OpenTelemetry collector to send traces to, OTLP over HTTP, such as http://127.0.0.1:4318"
            " (default: no traces); $OTEL_EXPORTER_OTLP_HEADERS is sent along",
            "URL",
        ),
    ] = None
    metrics_names: Annotated[
        MetricNames,
        Option(_GROUP, "names of Prometheus metrics; vllm: vLLM's names where it has the same metric"),
    ] = MetricNames.BATON
    kv_events: Annotated[
        str | None,
        Option(
            _GROUP,
            "publish which prefixes are cached, in vLLM's format over ZeroMQ, such as tcp://*:5557, for"
            " gateways that route by them (default: no events)",
            "ENDPOINT",
        ),
    ] = None
    kv_events_replay: Annotated[
        str | None,
        Option(_GROUP, "where subscribers of --kv-events ask for batches that they missed", "ENDPOINT"),
    ] = None
    kv_events_topic: Annotated[
        str | None,
        Option(_GROUP, "topic of --kv-events (default: kv@HOST@MODEL, with this machine's name)", "TOPIC"),
    ] = None
    explain_requests: Annotated[
        int, Option(_GROUP, "number of finished requests kept for `router explain`", "N", least=0)
    ] = 1000
    log_level: Annotated[LogLevel, Option(_GROUP, "log level; debug includes the workers' output")] = (
        LogLevel.INFO
    )
    log_format: Annotated[
        LogFormat,
        Option(
            _GROUP,
            "text, or one JSON object per line, for router and workers; json adds a line for every request at"
            " its end",
        ),
    ] = LogFormat.TEXT
    log_workers: Annotated[
        bool, Option(_GROUP, "show the workers' log lines in the router's output, as they are")
    ] = False
    decode_log_interval: Annotated[
        int,
        Option(
            _GROUP,
            "decode steps between two `Decode batch` lines of a worker's log; 0: no batch lines at all",
            "STEPS",
            least=0,
        ),
    ] = 40
