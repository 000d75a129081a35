"""How a model of embeddings or scores reduces a prompt to one vector, read from its folder.

Folders of sentence-transformers list modules in modules.json: the transformer, pooling, dense layers, and
normalization. Others say it by the class name in config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Head, Pooling


class Convert(StrEnum):
    """What a model is served as."""

    AUTO = "auto"
    """What its folder says."""
    NONE = "none"
    POOL = "pool"
    """A classifier's scores, or else embeddings."""
    EMBED = "embed"
    CLASSIFY = "classify"


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A dense layer after pooling: a folder with model.safetensors."""

    folder: str
    activation: str
    """"identity", "tanh" or "relu"."""


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    pooling: Pooling
    normalize: bool = False
    """Embeddings have length 1."""
    dense: tuple[DenseSpec, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of a classifier's or reward model's outputs; empty for embeddings."""
    raw_scores: bool = False
    """Whether scores of labels are wanted as they are, and not as probabilities."""
    size: int = 0
    """Length of the vector."""
    keeps_sums: bool = False
    """Pages own the sums of their rows, so that a vector of all rows may begin with cached pages."""
    max_length: int | None = None
    """Longest text in tokens, where the folder says so; None: the model's context."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that go before the input, by name."""
    default_prompt: str = ""
    """Name of the one that is used unless a request names another; empty: none."""

    @property
    def classifies(self) -> bool:
        return bool(self.labels)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The score of a pair by a model of text: how likely one token is next, against another."""

    true_id: int
    false_id: int
    instruction: str = ""
    """The default one; empty: none."""
    raw_scores: bool = False
    """Whether the difference of both logits is wanted, and not a probability."""

    @property
    def ids(self) -> tuple[int, int]:
        return self.true_id, self.false_id


_ACTIVATIONS: Final = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu"}
_MODES: Final = {
    "cls": Pooling.CLS,
    "mean": Pooling.MEAN,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "mean_sqrt_len": Pooling.MEAN_SQRT_LEN,
    "lasttoken": Pooling.LAST,
}
_OVERRIDES: Final = {"pooling_type", "seq_pooling_type", "normalize", "use_activation", "dimensions"}


def pooling_of(
    folder: Path, spec: ModelSpec, convert: Convert = Convert.AUTO, override: str | None = None
) -> PoolingSpec | None:
    """What a folder is served as; None: it generates text. `override`: vLLM's --pooler-config, JSON.

    Raises UnsupportedModel.
    """
    modules = _read(folder / "modules.json", list)
    if token_score_of(folder) is not None:
        modules = None
    pools = bool(modules) or spec.head is not Head.VOCABULARY
    if convert is Convert.NONE or (convert is Convert.AUTO and not pools):
        if spec.head is not Head.VOCABULARY:
            raise UnsupportedModel(f"{spec.architecture} without a language-model head generates no text")
        return None
    if spec.general is not None:
        raise UnsupportedModel(
            f"{spec.architecture} runs transformers' modules, which compute no vectors here"
        )
    if convert is Convert.CLASSIFY and spec.head is not Head.LABELS:
        raise UnsupportedModel("--convert classify needs a checkpoint of a *ForSequenceClassification")
    if spec.head is Head.LABELS and convert is not Convert.EMBED:
        first = Pooling.CLS if spec.attention.bidirectional else Pooling.LAST
        raw = _activation(folder) == "Identity"
        found = PoolingSpec(first, labels=spec.labels, raw_scores=raw, size=len(spec.labels))
    else:
        found = _of_modules(folder, spec, modules)
    found = _overridden(found, override)
    causal = not spec.attention.bidirectional
    if causal and found.pooling is Pooling.CLS:
        raise UnsupportedModel("CLS pooling of a causal model would see its first token only; use LAST")
    if causal and found.dense and found.pooling.sums:
        raise UnsupportedModel("dense layers after the mean of a causal model are not supported")
    return replace(found, keeps_sums=causal and found.pooling.sums and not found.classifies)


def token_score_of(folder: Path) -> TokenScore | None:
    """The LogitScore of a cross-encoder of sentence-transformers, if it has one. Raises UnsupportedModel."""
    for module in _read(folder / "modules.json", list) or ():
        if _kind(module) != "LogitScore":
            continue
        options = _read(folder / module.get("path", "") / "config.json", dict) or {}
        if options.get("false_token_id") is None:
            raise UnsupportedModel("a LogitScore without false_token_id is not supported")
        texts = _read(folder / "config_sentence_transformers.json", dict) or {}
        instruction = (texts.get("prompts") or {}).get(texts.get("default_prompt_name") or "", "")
        yes, no = int(options["true_token_id"]), int(options["false_token_id"])
        return TokenScore(yes, no, instruction, _activation(folder) == "Identity")
    return None


def _kind(module: Mapping[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _activation(folder: Path) -> str:
    """What a cross-encoder of sentence-transformers applies to its scores."""
    config = _read(folder / "config.json", dict) or {}
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    named = named or (_read(folder / "config_sentence_transformers.json", dict) or {}).get("activation_fn")
    return str(named or "").rpartition(".")[2]


def _of_modules(folder: Path, spec: ModelSpec, modules: Any) -> PoolingSpec:
    pooling = Pooling.CLS if spec.attention.bidirectional else Pooling.LAST
    normalize, dense, size = not modules, list[DenseSpec](), spec.hidden_size
    for module in modules or ():
        kind, place = _kind(module), module.get("path", "")
        options = _read(folder / place / "config.json", dict) or {}
        match kind:
            case "Transformer":
                continue
            case "Pooling":
                pooling = _mode(options)
            case "Dense":
                activation = str(options.get("activation_function", "")).rpartition(".")[2]
                if activation not in _ACTIVATIONS:
                    raise UnsupportedModel(f"activation {activation!r} of {place} is not supported")
                dense.append(DenseSpec(place, _ACTIVATIONS[activation]))
                size = int(options["out_features"])
            case "Normalize":
                normalize = True
            case _:
                raise UnsupportedModel(f"the module {kind} of modules.json is not supported")
    texts = _read(folder / "config_sentence_transformers.json", dict) or {}
    longest = (_read(folder / "sentence_bert_config.json", dict) or {}).get("max_seq_length")
    prompts = {name: text for name, text in (texts.get("prompts") or {}).items() if text}
    default = texts.get("default_prompt_name") or ""
    return PoolingSpec(
        pooling,
        normalize,
        tuple(dense),
        size=size,
        max_length=longest,
        prompts=prompts,
        default_prompt=default if default in prompts else "",
    )


def _mode(options: Mapping[str, Any]) -> Pooling:
    """The mode of 1_Pooling/config.json, in the old spelling or the new one."""
    named = options.get("pooling_mode")
    names = [named] if isinstance(named, str) else list(named or ())
    prefix = "pooling_mode_"
    names += [name.removeprefix(prefix) for name, on in options.items() if name.startswith(prefix) and on]
    found = {name.removesuffix("_token").removesuffix("_tokens") for name in names}
    if len(found) != 1 or not found <= _MODES.keys():
        raise UnsupportedModel(f"pooling by {', '.join(sorted(found)) or 'nothing'} is not supported")
    if not options.get("include_prompt", True):
        raise UnsupportedModel("include_prompt=false in the pooling's configuration is not supported")
    return _MODES[found.pop()]


def _overridden(found: PoolingSpec, override: str | None) -> PoolingSpec:
    if override is None:
        return found
    try:
        given = json.loads(override)
    except ValueError as error:
        raise UnsupportedModel(f"--pooler-config is not JSON: {error}") from None
    if not isinstance(given, dict) or (unknown := given.keys() - _OVERRIDES):
        names = "an object" if not isinstance(given, dict) else ", ".join(sorted(_OVERRIDES))
        raise UnsupportedModel(
            f"--pooler-config takes {names}, not {given if names == 'an object' else unknown}"
        )
    kind = given.get("seq_pooling_type") or given.get("pooling_type")
    if kind is not None:
        if str(kind).lower() not in set(Pooling):
            known = ", ".join(pooling.upper() for pooling in Pooling)
            raise UnsupportedModel(f"pooling_type {kind} is not supported; use {known}")
        found = replace(found, pooling=Pooling(str(kind).lower()))
    normalize = given.get("normalize", given.get("use_activation"))
    if normalize is None:
        return found
    if found.classifies:
        return replace(found, raw_scores=not normalize)
    return replace(found, normalize=bool(normalize))


def _read(path: Path, kind: type) -> Any:
    """The JSON of a file, or None if there is none. Raises UnsupportedModel."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise UnsupportedModel(f"{path} holds no {'list' if kind is list else 'object'}")
    return value
