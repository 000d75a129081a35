"""Panels of the Grafana dashboards, by dashboard and row; `dashboard.py` writes them."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = "[$__rate_interval]"
TOKENS_A_SECOND = "suffix: tokens/s"
STEPS_A_SECOND = "suffix: steps/s"
TOKENS = "suffix: tokens"


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    """Grafana's unit id, such as s, reqps, short, Bps, percentunit; or `suffix: ` and a word."""
    series: tuple[tuple[str, str], ...]
    """(expression, legend) pairs."""
    help: str = ""
    stacked: bool = False
    limit: float | None = None
    """Drawn as a line; the same as in docs/tuning.md and in the alerts."""


def quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """p50, p90 and p99 of a histogram; with `by`, p50 and p99 for each value of that label."""
    levels = (0.5, 0.99) if by else (0.5, 0.9, 0.99)
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({level}, sum by ({labels}) (rate({metric}_bucket{WINDOW})))",
            f"p{level * 100:g}{legend}",
        )
        for level in levels
    )


def rate(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return ((f"sum by ({by}) (rate({metric}{WINDOW}))", legend),)


DASHBOARDS: dict[str, dict[str, tuple[Panel, ...]]] = {
    "overview": {
        "What clients see": (
            Panel("Time to first token", "s", quantiles("baton_ttft_seconds"), limit=1.0),
            Panel("Inter-token latency", "s", quantiles("baton_itl_seconds"), limit=0.1),
            Panel(
                "Time per output token", "s", quantiles("baton_tpot_seconds"), help="Mean of each request."
            ),
            Panel("End to end", "s", quantiles("baton_e2e_seconds")),
            Panel(
                "Reads",
                "s",
                quantiles("baton_read_seconds"),
                help="Prompts without an answer: decisions, scores.",
            ),
            Panel(
                "Pauses of answers, by cause",
                "suffix: pauses/s",
                rate("baton_pauses_total", "cause"),
                help="Gaps between two tokens of more than 60 ms and twice the usual, per second.",
                stacked=True,
            ),
            Panel(
                "Requests, by how they ended", "reqps", rate("baton_requests_total", "outcome"), stacked=True
            ),
            Panel(
                "Unfinished requests",
                "short",
                (
                    ("sum(baton_router_running_requests)", "running"),
                    ("sum(baton_router_held_back_requests)", "of those, held back: no worker has room"),
                ),
            ),
        ),
        "Load": (
            Panel(
                "Tokens per second",
                TOKENS_A_SECOND,
                (
                    ("sum(baton_prompt_tokens_per_second)", "prompt"),
                    ("sum(baton_output_tokens_per_second)", "output"),
                ),
            ),
            Panel("Prompt length", TOKENS, quantiles("baton_request_prompt_tokens")),
            Panel("Output length", TOKENS, quantiles("baton_request_output_tokens")),
            Panel("Queued prompt tokens", TOKENS, (("sum(baton_router_queued_tokens)", "tokens"),)),
            Panel(
                "Predicted queue time",
                "s",
                (("max(baton_router_predicted_wait_seconds)", "for a prompt arriving now"),),
            ),
            Panel(
                "Workers in service",
                "short",
                (
                    ("sum by (role) (baton_worker_up)", "{{role}}"),
                    ("max by (role) (baton_desired_workers)", "{{role}}, desired"),
                ),
            ),
        ),
        "Router": (
            Panel(
                "Event loop lag",
                "s",
                quantiles("baton_router_loop_lag_seconds"),
                help="Delay of a timer. Every stream is delayed by as much.",
            ),
            Panel(
                "CPU",
                "percentunit",
                (
                    (
                        f'sum by (instance) (rate(process_cpu_seconds_total{{role="router"}}{WINDOW}))',
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Open files",
                "short",
                (
                    ('max by (instance) (process_open_fds{role="router"})', "{{instance}} open"),
                    ('max by (instance) (process_max_fds{role="router"})', "{{instance}} limit"),
                ),
            ),
        ),
    },
    "disaggregation": {
        "Stages up to the second token": (
            Panel(
                "Mean of each stage",
                "s",
                (
                    (
                        f"sum by (stage) (rate(baton_stage_seconds_sum{WINDOW}))"
                        f" / sum by (stage) (rate(baton_stage_seconds_count{WINDOW}))",
                        "{{stage}}",
                    ),
                ),
                help="The stages follow each other, from a request's arrival to its second token.",
                stacked=True,
            ),
            Panel("Queue time at a worker", "s", quantiles("baton_worker_queue_seconds", "role")),
            Panel("Wait for pages on the decode worker", "s", quantiles("baton_reserve_seconds")),
        ),
        "Handoff of KV": (
            Panel("Sent, by worker", "Bps", rate("baton_transfer_bytes_total", "worker")),
            Panel(
                "Links",
                "Bps",
                (
                    (
                        f"sum by (prefill, decode) (rate(baton_link_bytes_total{WINDOW}))",
                        "{{prefill}} to {{decode}}",
                    ),
                ),
            ),
            Panel(
                "Bandwidth of a handoff",
                "Bps",
                quantiles("baton_handoff_bytes_per_second"),
                help="Bytes divided by the time with writes in flight.",
            ),
            Panel(
                "Duration, and the part not hidden by the prefill",
                "s",
                (
                    *((e, f"{legend} whole") for e, legend in quantiles("baton_transfer_seconds")[:1]),
                    *((e, f"{legend} exposed") for e, legend in quantiles("baton_transfer_exposed_seconds")),
                ),
            ),
            Panel("Failures", "reqps", rate("baton_transfer_failures_total", "worker")),
            Panel(
                "Pages that a peer may write",
                "short",
                (
                    (
                        'sum by (worker, state) (baton_kv_pages{state=~"in_flight|quarantined"})',
                        "{{worker}} {{state}}",
                    ),
                ),
            ),
        ),
    },
    "scheduler": {
        "Steps": (
            Panel("Engine step", "s", quantiles("baton_step_seconds", "role")),
            Panel(
                "Slow steps, by cause",
                STEPS_A_SECOND,
                rate("baton_slow_steps_total", "cause"),
                help="Per second. More than three times what was expected, or a pause that readers notice.",
                stacked=True,
            ),
            Panel(
                "Kernels compiled or loaded while serving",
                "short",
                (
                    ('sum by (worker) (baton_kernels_compiled_total{when="serving"})', "{{worker}} compiled"),
                    ('sum by (worker) (baton_kernels_loaded_total{when="serving"})', "{{worker}} loaded"),
                ),
                help="Requests wait for each. The worker's log names them.",
            ),
            Panel("Steps per second", STEPS_A_SECOND, rate("baton_steps_total", "worker")),
            Panel(
                "Tokens computed per step",
                TOKENS,
                (
                    (
                        f"sum by (role) (rate(baton_computed_prompt_tokens_total{WINDOW}))"
                        f" / sum by (role) (rate(baton_steps_total{WINDOW}))",
                        "{{role}} prompt",
                    ),
                    (
                        f"sum by (role) (rate(baton_generated_tokens_total{WINDOW}))"
                        f" / sum by (role) (rate(baton_steps_total{WINDOW}))",
                        "{{role}} sampled",
                    ),
                ),
            ),
            Panel("Waiting requests", "short", (("sum by (worker) (baton_waiting_requests)", "{{worker}}"),)),
            Panel(
                "Waiting prompt tokens", TOKENS, (("sum by (worker) (baton_waiting_tokens)", "{{worker}}"),)
            ),
            Panel(
                "Preemptions", "suffix: preemptions/s", rate("baton_preemptions_total", "worker"), limit=0.1
            ),
            Panel("Prompt tokens of a step", TOKENS, quantiles("baton_step_prompt_tokens", "role")),
            Panel("Decodes of a step", "short", quantiles("baton_step_decodes", "role")),
            Panel(
                "Threads of a step on CPUs",
                "short",
                (("sum by (worker) (baton_compute_threads)", "{{worker}}"),),
                help="Fewer than --worker-cpus while other programs use its cores (docs/tuning.md).",
            ),
            Panel(
                "Load of the busiest expert",
                "short",
                (("sum by (worker) (baton_expert_imbalance)", "{{worker}}"),),
                help="Relative to the mean of its layer, averaged over layers; 0 for models without experts.",
            ),
        ),
        "KV": (
            Panel(
                "Pages, by state",
                "short",
                (("sum by (role, state) (baton_kv_pages)", "{{role}} {{state}}"),),
                help="Their sum is constant. Quarantined: a peer may still write there.",
                stacked=True,
            ),
            Panel(
                "Retained blocks",
                "short",
                (("sum by (worker) (baton_kv_retained_blocks)", "{{worker}}"),),
                help="That clients have asked to keep: in the pool, on tiers, or evicted nevertheless.",
            ),
            Panel(
                "Pages, by kind of layers",
                "short",
                (("sum by (role, kind, state) (baton_kv_group_pages)", "{{role}} {{kind}} {{state}}"),),
                help="Full: layers that attend to the whole context. Window-N: those that see N tokens.",
                stacked=True,
            ),
            Panel(
                "Token usage",
                "percentunit",
                (("sum by (worker) (baton_token_usage)", "{{worker}}"),),
                limit=0.95,
            ),
            Panel(
                "Running requests against their limit",
                "percentunit",
                (("baton_running_requests / baton_max_running_requests", "{{worker}}"),),
                limit=0.95,
            ),
            Panel(
                "Drafted tokens that were right",
                "percentunit",
                (
                    (
                        f"sum by (role) (rate(baton_accepted_tokens_total{WINDOW}))"
                        f" / sum by (role) (rate(baton_drafted_tokens_total{WINDOW}))",
                        "{{role}}",
                    ),
                ),
            ),
            Panel(
                "Prompt tokens from the prefix cache",
                "percentunit",
                (
                    (
                        f"sum by (role) (rate(baton_cache_hit_tokens_total{WINDOW}))"
                        f" / (sum by (role) (rate(baton_cache_hit_tokens_total{WINDOW}))"
                        f" + sum by (role) (rate(baton_computed_prompt_tokens_total{WINDOW})))",
                        "{{role}}",
                    ),
                ),
            ),
        ),
    },
    "workers": {
        "Service": (
            Panel("Connected to the router", "short", (("baton_worker_up", "{{worker}}"),)),
            Panel("Engine runs", "short", (("baton_worker_ready", "{{worker}}"),)),
            Panel(
                "Connections since the router's start",
                "short",
                (("baton_worker_connects_total", "{{worker}}"),),
            ),
            Panel("Running requests", "short", (("sum by (worker) (baton_running_requests)", "{{worker}}"),)),
            Panel(
                "Prompt tokens computed per second",
                TOKENS_A_SECOND,
                rate("baton_computed_prompt_tokens_total", "worker"),
            ),
            Panel(
                "Tokens sampled per second", TOKENS_A_SECOND, rate("baton_generated_tokens_total", "worker")
            ),
            Panel(
                "Requests, by how they ended", "reqps", rate("baton_worker_requests_total", "worker, outcome")
            ),
            Panel(
                "Retries",
                "reqps",
                (
                    (
                        f"sum by (failed_worker) (rate(baton_request_retries_total{WINDOW})) or vector(0)",
                        "{{failed_worker}}",
                    ),
                ),
            ),
            Panel(
                "Unexpected messages", "suffix: messages/s", rate("baton_unexpected_messages_total", "worker")
            ),
        ),
        "Adapters": (
            Panel(
                "Slots in use",
                "short",
                (
                    ("sum by (worker) (baton_adapter_slots_used)", "{{worker}}"),
                    ("max(baton_adapter_slots)", "--max-loras"),
                ),
                help="Adapters that a step can compute with. All in use: requests of others wait.",
            ),
            Panel(
                "Host memory",
                "bytes",
                (("sum by (worker) (baton_adapter_host_bytes)", "{{worker}}"),),
            ),
            Panel("Loading", "s", quantiles("baton_adapter_load_seconds", "worker")),
        ),
        "Weights": (
            Panel(
                "Updates and pauses",
                "s",
                quantiles("baton_router_weight_operation_seconds", "operation"),
                help="From the call to its answer: every worker and every router has done it.",
            ),
            Panel(
                "Updates and pauses that go on",
                "short",
                (("sum by (operation) (baton_router_weight_operations_in_flight)", "{{operation}}"),),
            ),
        ),
        "Processes": (
            Panel("CPU", "percentunit", rate("process_cpu_seconds_total", "worker")),
            Panel("Memory", "bytes", (("sum by (worker) (process_resident_memory_bytes)", "{{worker}}"),)),
            Panel("Open files", "short", (("sum by (worker) (process_open_fds)", "{{worker}}"),)),
        ),
    },
}
