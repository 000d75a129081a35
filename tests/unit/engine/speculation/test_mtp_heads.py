"""Heads for multi-token prediction: drafts are those of the formula, and answers the same as without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from engine.config import EngineConfig, SpeculationConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.build import build_runner
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.model_config.draft_heads import mtp_head
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.mtp import MtpHead
from engine.parallel.step_channel import StepChannel
from engine.parallel.torch_communicator import TorchCommunicator
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.ranks import together
from tests.unit.engine.modeling.loader.quantizing import FP8_FORMATS, rewrite
from tests.unit.engine.speculation.drafting import DRAFTS, MODEL_ONLY, PROMPTS, Watched, answers
from tests.unit.tiny import make_config

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 12, "v_head_dim": 8}
_LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_EXPERTS["shared_expert_intermediate_size"] = 24


def _deepseek(fields: dict[str, Any], *, head: bool, **shape: Any) -> PreTrainedModel:
    sizes = fields | _ROUTED | _LATENT | {"num_key_value_heads": fields["num_attention_heads"]} | shape
    return DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, first_k_dense_replace=0 if head else 1))


def _sparse(fields: dict[str, Any], *, head: bool) -> PreTrainedModel:
    sizes = fields | _ROUTED | _LATENT | {"num_key_value_heads": fields["num_attention_heads"]}
    indexer = {"index_topk": 9, "index_head_dim": 8, "index_n_heads": 24}
    config = DeepseekV32Config(**sizes, **indexer, first_k_dense_replace=0 if head else 1)
    return DeepseekV32ForCausalLM(config)


def _glm(fields: dict[str, Any], *, head: bool) -> PreTrainedModel:
    sizes = fields | _ROUTED | {"use_qk_norm": True, "first_k_dense_replace": 0 if head else 1}
    return Glm4MoeForCausalLM(Glm4MoeConfig(**sizes, head_dim=8))


def _layer_types(*, head: bool) -> list[str]:
    return ["full_attention"] if head else ["linear_attention", "full_attention"]


def _qwen3_next(fields: dict[str, Any], *, head: bool) -> PreTrainedModel:
    sizes = fields | _LINEAR | _EXPERTS | {"layer_types": _layer_types(head=head)}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**sizes))


def _qwen3_5(fields: dict[str, Any], *, head: bool, **shape: Any) -> PreTrainedModel:
    sizes = fields | _LINEAR | {"layer_types": _layer_types(head=head)} | shape
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**sizes))


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    "deepseek": _deepseek,
    "deepseek with indexers": _sparse,
    "glm": _glm,
    "qwen3-next": _qwen3_next,
    "qwen3.5": _qwen3_5,
}


@dataclass
class WithHead:
    """A model, whose folder has a head beside it, and what the head is in transformers' terms."""

    target: SmallModel
    layer: PreTrainedModel
    """A model of one layer, whose final norm is that of the head."""
    around: dict[str, torch.Tensor]
    """The norms before it, and the projection."""
    is_qwen: bool

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = self.layer.config.rms_norm_eps + x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(scale) * (weight + 1 if self.is_qwen else weight)

    @torch.inference_mode()
    def draft(self, tokens: list[int], count: int) -> list[int]:
        """The greedy draft behind `tokens`: h' = M [norm(embedding); norm(hidden)], h = layer(h')."""
        model: Any = self.target.model
        features = model.model(torch.tensor([tokens])).last_hidden_state[0, :-1]
        before: list[torch.Tensor] = []
        hook = self.layer.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
        draft: list[int] = []
        for _ in range(count):
            embedded = model.get_input_embeddings()(torch.tensor([*tokens[1:], *draft]))
            both = zip((embedded, features), ("embedding", "hidden"), strict=True)
            normed = [self._norm(x, self.around[name]) for x, name in both]
            inputs = torch.cat(normed, -1) @ self.around["projection"].t()
            behind = self.layer.model(inputs_embeds=inputs[None]).last_hidden_state[0]
            draft.append(int(model.lm_head(behind[-1]).argmax()))
            following = behind if self.is_qwen else before[-1][0]
            features = torch.cat([features, following[-1:]])
        hook.remove()
        return draft


def save(folder: Path, family: Callable[..., PreTrainedModel], scratch: Path) -> WithHead:
    target = save_small_model(folder, lambda **fields: family(fields, head=False))
    shape = {name: getattr(target.model.config, name) for name in _SHARED}
    layer = family(shape | {"num_hidden_layers": 1}, head=True).eval()
    is_qwen = "Qwen" in type(layer).__name__
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    layer.save_pretrained(scratch)
    size = target.model.config.hidden_size
    around = {
        "embedding": torch.randn(size) * 0.3 + (not is_qwen),
        "hidden": torch.randn(size) * 0.3 + (not is_qwen),
        "projection": torch.randn(size, 2 * size) * 0.3,
    }
    first = target.model.config.num_hidden_layers
    prefix = "mtp.layers.0." if is_qwen else f"model.layers.{first}."
    names, outside, norm = ("enorm", "hnorm", "eh_proj"), prefix, f"{prefix}shared_head.norm.weight"
    if is_qwen:
        names, outside = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc"), "mtp."
        norm = "mtp.norm.weight"
    stored = load_file(scratch / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {
        name.replace("model.layers.0.", prefix): tensor
        for name, tensor in stored.items()
        if name.startswith("model.layers.0.")
    }
    tensors |= {f"{outside}{n}.weight": around[k] for n, k in zip(names, around, strict=True)}
    tensors[norm] = stored["model.norm.weight"]
    if not is_qwen:  # copies, as these checkpoints have them
        tensors[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return WithHead(target, layer, around, is_qwen)


_SHARED = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("initializer_range", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id"),
    "pad_token_id",
)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WithHead:
    folder, scratch = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("head")
    return save(folder, FAMILIES[request.param], scratch)


def engine_config_of(folder: Path, *, mtp: bool, **changes: Any) -> EngineConfig:
    speculation = SpeculationConfig(drafters=MODEL_ONLY, num_draft_tokens=DRAFTS, adaptive=False, mtp=True)
    changes = {"num_pages": 200, "max_model_len": 256, **changes}
    return make_config(folder, speculation=speculation if mtp else None, **changes)


def engine_with(folder: Path, *, mtp: bool, **changes: Any) -> Engine:
    return Engine(engine_config_of(folder, mtp=mtp, **changes))


def requests(sampling: SamplingParams) -> list[Request]:
    return [Request(id, prompt, sampling) for id, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def plain(model: WithHead) -> Iterator[dict[int, list[Any]]]:
    engine = engine_with(model.target.folder, mtp=False)
    yield answers(engine, requests(GREEDY))
    engine.close()


@pytest.mark.parametrize("changes", [{}, {"overlap": True}, {"overlap": True, "chunk_budget": 8}])
def test_drafts_are_those_of_the_formula_and_change_nothing(
    model: WithHead, plain: dict[int, list[Any]], changes: dict[str, Any]
) -> None:
    engine = engine_with(model.target.folder, mtp=True, **changes)
    watched = Watched(engine)
    assert answers(engine, requests(GREEDY)) == plain
    assert len(watched.drafted) > 20
    if "chunk_budget" not in changes:  # with which some prompts begin with pages without rows of the head
        for tokens, draft in watched.drafted[::7]:
            assert draft == model.draft(tokens, len(draft))
    engine.close()


def test_a_head_for_several_ranks_has_the_whole_lm_head(model: WithHead) -> None:
    """The target's is distributed: the first rank, which runs the head, has a part of it."""
    spec = ModelSpec.from_folder(model.target.folder)
    head = load_model(model.target.folder, spec=mtp_head(spec, ranks=2))
    assert isinstance(head, MtpHead)
    hidden, theirs = torch.randn(3, spec.hidden_size), model.target.model.get_output_embeddings()
    head.share(load_model(model.target.folder))
    torch.testing.assert_close(head.logits(hidden), hidden @ theirs.weight.t(), atol=1e-4, rtol=1e-4)


def test_the_first_of_two_ranks_drafts_and_both_keep_the_states(
    model: WithHead, plain: dict[int, list[Any]]
) -> None:
    config = replace(engine_config_of(model.target.folder, mtp=True), tensor_parallel_size=2)

    def rank(communicator: TorchCommunicator) -> dict[int, list[Any]]:
        if communicator.shard.is_first_rank:
            runner, drafts = build_runner(config, communicator=lambda: communicator)
            engine = Engine(config, runner=runner, drafts=drafts)
            told = answers(engine, requests(GREEDY))
            assert engine.stats().drafts.drafted > 20
            engine.close()
            return told
        part = ModelRunner(config, communicator=communicator)
        steps = StepChannel(communicator)
        while (inputs := steps.receive()) is not None:
            part.execute_step(inputs)
        return {}

    assert together(2, rank)[0] == plain


def test_a_head_in_fp8_with_scales_of_blocks_is_what_its_values_are(tmp_path: Path) -> None:
    """As DeepSeek-V3 has it: the projection is in 16 bits."""
    folder, scratch, stored, dense = (tmp_path / name for name in ("model", "head", "stored", "dense"))
    for made in (folder, scratch):
        made.mkdir()
    wide = {"intermediate_size": 128}
    save(folder, lambda f, *, head: _deepseek(f | wide, head=head, moe_intermediate_size=128), scratch)
    rewrite(folder, stored, dense, FP8_FORMATS["fp8 in blocks"])
    seen = []
    for quantized in (stored, dense):
        engine = engine_with(quantized, mtp=True)
        watched = Watched(engine)
        answers(engine, requests(GREEDY)[:2])
        seen.append([draft for _, draft in watched.drafted])
        engine.close()
    assert seen[0] == seen[1]
    assert sum(map(len, seen[0])) > 10


def test_a_checkpoint_without_its_head_says_so(model: WithHead, tmp_path: Path) -> None:
    model.target.model.save_pretrained(tmp_path)
    refused = (WeightsError, UnsupportedModel)  # transformers' class may know of no head
    with pytest.raises(refused, match=r"no head for multi-token prediction.*use --speculative auto"):
        engine_with(tmp_path, mtp=True)


def test_a_family_without_heads_says_so(tmp_path: Path) -> None:
    save_small_model(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"no head for multi-token prediction.*use --speculative auto"):
        engine_with(tmp_path, mtp=True)
