"""A registry of metrics as it is scraped: labels that all samples share, and names that dashboards expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


class MetricNames(Enum):
    BATON = "baton"
    VLLM = "vllm"
    """vLLM's, where it has the same metric; Baton's for the others."""


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that are called differently."""


VLLM: Final[Mapping[str, _Name]] = {
    "baton_running_requests": _Name("vllm:num_requests_running"),
    "baton_waiting_requests": _Name("vllm:num_requests_waiting"),
    "baton_token_usage": _Name("vllm:kv_cache_usage_perc"),
    "baton_cluster_running_requests": _Name("vllm:num_requests_running"),
    "baton_cluster_waiting_requests": _Name("vllm:num_requests_waiting"),
    "baton_cluster_token_usage": _Name("vllm:kv_cache_usage_perc"),
    "baton_cache_config_info": _Name(
        "vllm:cache_config_info", {"page_size": "block_size", "num_pages": "num_gpu_blocks"}
    ),
    "baton_lora_requests_info": _Name("vllm:lora_requests_info"),
    "baton_cluster_lora_requests_info": _Name("vllm:lora_requests_info"),
    "baton_adapter_loaded": _Name("vllm:lora_adapter_loaded"),
    "baton_adapter_slots_used": _Name("vllm:num_gpu_loaded_lora_adapters"),
    "baton_adapter_slots": _Name("vllm:max_gpu_lora_adapters"),
    "baton_adapter_load_seconds": _Name("vllm:lora_adapter_load_seconds"),
    "baton_router_weight_operation_seconds": _Name("vllm:rl_weight_update_operation_duration_seconds"),
    "baton_router_weight_operations_in_flight": _Name("vllm:rl_weight_update_operations_in_flight"),
    "baton_preemptions": _Name("vllm:num_preemptions"),
    "baton_cache_queried_tokens": _Name("vllm:prefix_cache_queries"),
    "baton_cache_hit_tokens": _Name("vllm:prefix_cache_hits"),
    "baton_image_cache_queries": _Name("vllm:mm_cache_queries"),
    "baton_image_cache_hits": _Name("vllm:mm_cache_hits"),
    "baton_prompt_tokens": _Name("vllm:prompt_tokens"),
    "baton_output_tokens": _Name("vllm:generation_tokens"),
    "baton_drafts": _Name("vllm:spec_decode_num_drafts"),
    "baton_drafted_tokens": _Name("vllm:spec_decode_num_draft_tokens"),
    "baton_accepted_tokens": _Name("vllm:spec_decode_num_accepted_tokens"),
    "baton_accepted_tokens_at": _Name("vllm:spec_decode_num_accepted_tokens_per_pos"),
    "baton_requests": _Name("vllm:request_success", {"outcome": "finished_reason"}),
    "baton_request_prompt_tokens": _Name("vllm:request_prompt_tokens"),
    "baton_request_output_tokens": _Name("vllm:request_generation_tokens"),
    "baton_ttft_seconds": _Name("vllm:time_to_first_token_seconds"),
    "baton_itl_seconds": _Name("vllm:inter_token_latency_seconds"),
    "baton_tpot_seconds": _Name("vllm:request_time_per_output_token_seconds"),
    "baton_e2e_seconds": _Name("vllm:e2e_request_latency_seconds"),
    "baton_request_queue_seconds": _Name("vllm:request_queue_time_seconds"),
    "baton_request_prefill_seconds": _Name("vllm:request_prefill_time_seconds"),
    "baton_request_decode_seconds": _Name("vllm:request_decode_time_seconds"),
}
"""vLLM's names, by the name of the family, which for counters is without _total."""


@dataclass(frozen=True, slots=True)
class MetricSource:
    registry: CollectorRegistry
    labels: Mapping[str, str]
    """Added to samples that do not have them."""


def exported(sources: Sequence[MetricSource], names: MetricNames = MetricNames.BATON) -> CollectorRegistry:
    """What `sources` hold, with CPU time, memory and open files of this process, for scraping.

    Figures of the process have the labels that are the same in all sources. Nothing is kept: each scrape
    asks the sources.
    """
    target = CollectorRegistry()
    target.register(_Export(sources, VLLM if names is MetricNames.VLLM else {}))
    return target


class _Export(Collector):
    def __init__(self, sources: Sequence[MetricSource], names: Mapping[str, _Name]) -> None:
        self._sources = sources
        self._process = ProcessCollector(registry=None)
        common = set.intersection(*(set(source.labels.items()) for source in sources))
        self._common = dict(sorted(common))
        self._names = names

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not wait for an engine that has not started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}  # the format wants the samples of a family together
        for source in self._sources:
            for family in source.registry.collect():
                self._add(families, family, source.labels)
        for family in self._process.collect():
            self._add(families, family, self._common)
        return families.values()

    def _add(self, families: dict[str, Metric], family: Metric, labels: Mapping[str, str]) -> None:
        known = self._names.get(family.name, _Name(family.name))
        metric = families.setdefault(family.name, Metric(known.name, family.documentation, family.type))
        metric.samples += [_sample(sample, family.name, known, labels) for sample in family.samples]


def _sample(sample: Sample, family: str, known: _Name, labels: Mapping[str, str]) -> Sample:
    own = {known.labels.get(name, name): value for name, value in sample.labels.items()}
    return sample._replace(name=known.name + sample.name[len(family) :], labels={**labels, **own})
