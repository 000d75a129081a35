"""Settings of operation: drain, admin endpoint, logs, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.choices import LogFormat, LogLevel, MetricNames
from router.config.option import Heading

__all__ = ["OperationSettings"]

_group = Heading("operation")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettings:
    drain_timeout: float = _group(
        30.0, "how long running requests may take to finish after SIGTERM", "SECONDS", least=0
    )
    admin_port: int | None = _group(
        None,
        "loopback port for `router workers`, `explain`, `drain` and `restart`; 0 picks a free one"
        " (default: --http-port + 1)",
        "PORT",
    )
    otlp_traces_endpoint: str | None = _group(
        None,
        "OpenTelemetry collector to send traces to, OTLP over HTTP, such as http://127.0.0.1:4318"
        " (default: no traces); $OTEL_EXPORTER_OTLP_HEADERS is sent along",
        "URL",
    )
    metrics_names: MetricNames = _group(
        MetricNames.BATON, "names of Prometheus metrics; vllm: vLLM's names where it has the same metric"
    )
    kv_events: str | None = _group(
        None,
        "publish which prefixes are cached, in vLLM's format over ZeroMQ, such as tcp://*:5557, for"
        " gateways that route by them (default: no events)",
        "ENDPOINT",
    )
    kv_events_replay: str | None = _group(
        None, "where subscribers of --kv-events ask for batches that they missed", "ENDPOINT"
    )
    kv_events_topic: str | None = _group(
        None, "topic of --kv-events (default: kv@HOST@MODEL, with this machine's name)", "TOPIC"
    )
    explain_requests: int = _group(
        1000, "number of finished requests kept for `router explain`", "N", least=0
    )
    log_level: LogLevel = _group(LogLevel.INFO, "log level; debug includes the workers' output")
    log_format: LogFormat = _group(
        LogFormat.TEXT,
        "text, or one JSON object per line, for router and workers; json adds a line for every request at"
        " its end",
    )
    log_workers: bool = _group(False, "show the workers' log lines in the router's output, as they are")
    decode_log_interval: int = _group(
        40,
        "decode steps between two `Decode batch` lines of a worker's log; 0: no batch lines at all",
        "STEPS",
        least=0,
    )
