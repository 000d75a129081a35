"""Describes a class of transformers by a pass without weights: what its layers ask of attention.

A pass on the meta device computes shapes only. It shows each attention call with its heads, window, scale,
soft cap and sinks, whatever the class calls these in its config, and what a class needs that is not here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel, masking_utils

from engine.model_config.errors import UnsupportedModel
from engine.model_config.parts.general_spec import GeneralLayer, GeneralSpec
from engine.modeling.general import classes
from engine.modeling.general.halves import Halves
from engine.modeling.general.interface import ATTENTION, DESCRIBING, AttentionCall, running

_TOKENS: Final = 3
_FAR: Final = 1 << 20
"""Position whose mask is looked at: farther than any window."""


_TENSORS: Final = frozenset({"position_ids", "cache_position", "s_aux"})
"""Tensors that attention takes; others would choose what a token attends to, or weigh it."""
_WAITING: Final = (
    torch.ops.aten.nonzero.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.item.default,
)
"""Operations for which the host waits."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """In place of a mask: it can only be handed on to attention."""

    window: int | None


@dataclass
class _Describing:
    """A `Pass` that notes what the layers ask for."""

    parameters: Mapping[int, str]
    """Paths by identity."""
    layers: list[GeneralLayer] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        self.layers.append(self._layer(call))
        tokens, heads, _, _ = call.query.shape
        return call.query.new_empty(tokens, 1, heads, call.value.shape[3])

    def mask(self, **options: Any) -> object:
        return _Mask(_window(options["mask_function"]))

    def _layer(self, call: AttentionCall) -> GeneralLayer:
        options = {name: value for name, value in call.options.items() if value is not None}
        where = type(call.module).__name__
        if not isinstance(call.mask, _Mask | None):
            raise UnsupportedModel(f"{where} adds something to attention's mask")
        if options.get("is_causal", getattr(call.module, "is_causal", True)) is False and call.mask is None:
            raise UnsupportedModel(f"{where} attends in both directions, or to another sequence")
        for name, value in options.items():
            if isinstance(value, Tensor) and name not in _TENSORS:
                raise UnsupportedModel(f"{where} gives {name} to attention")
        if call.query.shape[2] != 1 or call.key.shape[2] != 1:
            raise UnsupportedModel(f"{where} attends to more than the tokens of the sequence")
        window = options.get("sliding_window") if call.mask is None else call.mask.window
        scale = options.get("scaling", call.query.shape[3] ** -0.5)
        if not isinstance(scale, int | float):
            raise UnsupportedModel(f"{where} computes the scale of attention")
        sinks = options.get("s_aux")
        return GeneralLayer(
            heads=call.query.shape[1],
            kv_heads=call.key.shape[1],
            head_dim=call.query.shape[3],
            value_dim=call.value.shape[3],
            scale=float(scale),
            window=window,
            soft_cap=options.get("softcap"),
            sinks=None if sinks is None else self.parameters[id(sinks)],
        )


def _window(visible: Callable[..., Any]) -> int | None:
    """The window of a function that says what a token attends to; None: all before it."""
    with torch.device("cpu"):
        spans = [_span(visible, token) for token in (_FAR, _FAR + 1)]
    if spans[0] is None or spans[0] != spans[1]:
        raise UnsupportedModel("attention is neither causal nor has it a sliding window")
    return None if spans[0] > _FAR else spans[0]


def _span(visible: Callable[..., Any], token: int) -> int | None:
    """How many tokens `token` attends to, counted from the first of the nearest _FAR + 1; None: not all of
    those after it."""
    first = torch.tensor(0)
    seen = torch.as_tensor(visible(first, first, torch.tensor(token), torch.arange(token + 2)))
    seen = seen.expand(token + 2)
    begin = token + 1 - int(seen.sum())
    is_one_span = bool(seen[begin : token + 1].all())
    if bool(seen[-1]) or not is_one_span:
        return None
    return _FAR + 1 if begin == 0 else token + 1 - begin


class _Watched(nn.Linear):
    """A linear layer that notes who reads its weight, and what it is applied to."""

    read_directly = False
    rows = 0
    """Rows of its last input; 0: it was not applied."""

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        self.read_directly = True
        return _weight(self)

    def forward(self, input: Tensor) -> Tensor:
        self.rows = math.prod(input.shape[:-1])
        return functional.linear(input, _weight(self), self.bias)


def _weight(layer: nn.Module) -> nn.Parameter:
    weight = layer._parameters["weight"]
    assert weight is not None
    return weight


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what a meta tensor cannot, as if nothing was found, and notes that it was asked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = False
        self.mixes: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAITING and args[0].is_meta:
            self.waits = True
            if func is torch.ops.aten.nonzero.default:
                return args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
            return False if args[0].dtype is torch.bool else 0
        if func is torch.ops.aten.convolution.default:
            self.mixes = "a convolution"
        return func(*args, **(kwargs or {}))


def describe(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a `ModelSpec` that depend on the class. Raises UnsupportedModel."""
    cls = classes.class_of(config)
    _refuse_by_name(cls, config)
    try:
        with _unvalidated():
            with torch.device("meta"):
                model = classes.build(config, DESCRIBING, DESCRIBING)
            return _described(classes.on_meta(model), config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{cls.__name__} cannot run on Baton's pages: {error}") from error
    except Exception as error:
        raise UnsupportedModel(f"{cls.__name__} cannot run on Baton's pages: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What the failure of a class's code in a pass without weights says."""
    said = str(error).strip().partition("\n")[0][:200]
    if _Mask.__name__ in said:
        return "it computes with attention's mask"
    if isinstance(error, KeyError) and DESCRIBING in said:
        return "it has attention of its own"
    if isinstance(error, ImportError):
        return f"a package is missing: {said}"
    return f"its code fails in a pass without weights ({type(error).__name__}: {said})"


def _refuse_by_name(cls: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ()) | set(
        getattr(text, "layers_block_type", None) or ()
    )
    reasons = {
        "it is an encoder-decoder": config.is_encoder_decoder,
        "it keeps a state outside attention": cls._is_stateful
        or bool(kinds & {"linear_attention", "mamba", "conv", "recurrent"}),
        "ALiBi is not supported": bool(getattr(text, "alibi", False)),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModel(f"{cls.__name__} cannot run on Baton's pages: {reason}")


def _described(model: PreTrainedModel, config: PreTrainedConfig) -> dict[str, Any]:
    head, table = classes.head_of(model), classes.table_of(model)
    tied = head.weight is table.weight
    body = _first_called(model)
    paths = dict(model.named_modules())
    parameters = {id(parameter): path for path, parameter in model.named_parameters()}
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Watched
    used: set[nn.Module] = set()
    hook = nn.modules.module.register_module_forward_pre_hook(lambda module, _: used.add(module))
    seen, shapes = _Describing(parameters), _Shapes()
    try:
        with torch.no_grad(), torch.device("meta"), _no_packing(), running(seen), shapes:
            halves = Halves(model, body)
            tokens = torch.zeros(_TOKENS, dtype=torch.int64)
            halves.hidden(tokens, tokens)
            described, seen.layers = seen.layers, []
            classes.attend_by(model, ATTENTION)  # which builds no masks
            shapes.waits = False
            hidden = halves.hidden(tokens, tokens)
            logits = halves.logits(hidden)
            if len(seen.layers) != len(described):
                raise UnsupportedModel("its layers depend on masks")
    finally:
        hook.remove()
    if not described:
        raise UnsupportedModel("it does not use transformers' attention interface")
    if shapes.mixes:
        raise UnsupportedModel(f"it mixes tokens outside attention ({shapes.mixes})")
    text = config.get_text_config(decoder=True)
    cut = getattr(text, "sliding_window", None) and not getattr(text, "layer_types", None)
    if cut and not any(layer.window for layer in described):
        raise UnsupportedModel("transformers' cache has a window for it, and its masks have none")
    if head.in_features != hidden.shape[1]:
        raise UnsupportedModel("its head does not take the hidden states of its layers")
    if _begins_after_padding(paths):
        raise UnsupportedModel(
            "its positions begin after that of padding, in which transformers is not consistent"
        )
    outside = {id(_weight(table)), id(_weight(head))}
    unused = _unused(paths, used)
    inside = [
        p for path, p in model.named_parameters() if not path.startswith(tuple(f"{one}." for one in unused))
    ]
    watched = {path: one for path, one in paths.items() if isinstance(one, _Watched)}
    spec = GeneralSpec(
        class_name=type(model).__name__,
        eos=getattr(config.get_text_config(decoder=True), "eos_token_id", None),
        config=json.dumps(config.to_dict(), default=str),
        body=body,
        layers=tuple(described),
        parameters=sum(p.numel() for p in model.parameters() if id(p) not in outside),
        table=(table.num_embeddings, table.embedding_dim),
        read_directly=tuple(path for path, one in watched.items() if one.read_directly),
        not_by_token=tuple(path for path, one in watched.items() if one.rows != _TOKENS),
        unused=tuple(unused),
        stacks=any(parameter.dim() == 3 for parameter in inside),
        waits=shapes.waits,
    )
    return {
        "general": asdict(spec),
        "vocab_size": logits.shape[1],
        "hidden_size": hidden.shape[1],
        "tied_embeddings": tied,
        "text": json.loads(json.dumps(_with_old_names(config.get_text_config(decoder=True)), default=str)),
    }


def _with_old_names(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a config, also by the names that all configs have for them."""
    names = ("max_position_embeddings", "intermediate_size", "eos_token_id")
    common = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return {**config.to_dict(), **common}


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Let distributions, from which some classes draw buffers, take arguments without values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _no_packing() -> Iterator[None]:
    """Do not look for several sequences in a row of tokens: that reads values."""
    before = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before


def _begins_after_padding(modules: Mapping[str, nn.Module]) -> bool:
    """Whether there is a table of positions as RoBERTa's descendants have it."""
    for path, module in modules.items():
        named = path.rpartition(".")[2] in ("position_embeddings", "embed_positions")
        if named and type(module) is nn.Embedding and module.padding_idx is not None:
            return True
    return False


class _Found(Exception):
    def __init__(self, module: nn.Module) -> None:
        self.module = module


def _first_called(model: PreTrainedModel) -> str:
    """Path of the first module that the model's `forward` calls."""

    def called(module: nn.Module, _: object) -> None:
        if module is not model:
            raise _Found(module)

    tokens = torch.zeros(_TOKENS, 1, dtype=torch.int64, device="meta")
    hook = nn.modules.module.register_module_forward_pre_hook(called)
    try:
        model(input_ids=tokens, position_ids=tokens, use_cache=False, return_dict=True)
    except _Found as found:
        return classes.path_of(model, found.module)
    finally:
        hook.remove()
    raise UnsupportedModel("its forward calls no module")


def _unused(paths: Mapping[str, nn.Module], used: set[nn.Module]) -> list[str]:
    """The outermost modules that were not called, nor any within. Experts are numbered, and may be chosen."""
    found: list[str] = []
    for path, module in paths.items():
        numbered = any(part.isdigit() for part in path.split("."))
        if numbered or not path or any(path.startswith(f"{outer}.") for outer in found):
            continue
        if not any(one in used for one in module.modules()) and any(True for _ in module.parameters()):
            found.append(path)
    return found


def answer(config: str) -> dict[str, Any]:
    """What the describing process prints: see `general`."""
    try:
        return describe(classes.config_of(json.loads(config)))
    except UnsupportedModel as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    print(json.dumps(answer(sys.stdin.read())))
