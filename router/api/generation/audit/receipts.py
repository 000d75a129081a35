"""Receipts: the digests of everything that an answer was computed from, enough to compute it again.

A receipt depends on the answer, the model's files and the request alone: not on the API, the mode, the
workers, cached prefixes or the request's history.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from common.block_hash import block_hashes, root_hash
from common.origin import activation_key, media_keys
from common.token_array import token_array
from router.api.generation.audit.answer import Answer, Detail, Issuer
from router.api.generation.params.sampling_options import CHANGE_NO_TOKEN
from rpc.baton.v1 import sampling_pb2

RECEIPT_VERSION: Final = 1
PAGE_TOKENS: Final = 16
"""Tokens of a page in `Receipt.pages`, whatever the workers' --page-size."""
_DIGEST_BYTES: Final = 32


_Hex: TypeAlias = Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
_Position: TypeAlias = Annotated[int, Field(ge=0)]


class ReceiptError(ValueError):
    """This is not a receipt, or one of another version."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpan:
    """Weights that computed a part of the answer."""

    first: _Position
    """Position in the answer of the first token that they computed."""
    digest: str
    """Digest of all tensors; empty in records of a service that does not know it."""
    version: str = ""
    """Name given by the caller of a weight update; empty for the weights of the start."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlace:
    """A media item, at positions [offset, offset + length) of the prompt."""

    digest: _Hex
    """Over the processor's configuration and everything that it makes of the item."""
    offset: _Position
    length: _Position


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class TokensDigest:
    count: int
    digest: str

    @classmethod
    def of(cls, tokens: Sequence[int]) -> TokensDigest:
        return cls(count=len(tokens), digest=_digest(array("I", tokens).tobytes()))


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Digests are hexadecimal."""

    version: int = RECEIPT_VERSION
    model: str
    """Name under which the model, or its adapter, is served."""
    weights: tuple[WeightsSpan, ...]
    """More than one if the weights were updated during the answer."""
    adapter: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*(@[0-9]{1,9})?$")]
    """Digest of the adapter's content, for an activated one with `@` and the position from which it was used;
    empty: the base model."""
    media: tuple[MediaPlace, ...] = ()
    """Media items of the prompt, in order."""
    config: str
    """Digest of config.json, and of how weights are quantized at load."""
    numerics: str
    """Formats of numbers and device: see `EngineConfig.numerics`."""
    tokenizer: str
    template: str
    """Digest of the chat template; empty if the model has none."""
    sampling: Mapping[str, Any]
    """As resolved, with the seed that was used: none for a greedy answer."""
    prompt: TokensDigest
    output: TokensDigest
    """With the token that ended the answer."""
    finish: str
    """"stop" or "length"."""
    namespace: _Hex
    """Namespace of the request's KV; see `common.origin`."""
    pages: tuple[str, ...]
    """Hash of each whole page of prompt and answer, over the namespace and all that is before its end."""

    def chain(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[str, ...]:
        """Hashes of whole pages that a prompt and an answer have by it; none if it has media elsewhere."""
        keys = [*prompt, *tokens]
        for item in self.media:
            end = item.offset + item.length
            if end > len(prompt):
                return ()
            keys[item.offset : end] = media_keys(bytes.fromhex(item.digest), range(item.length))
        adapter, _, start = self.adapter.partition("@")
        if start and int(start) < len(prompt) and keys[int(start)] >= 0:
            keys[int(start)] = activation_key(bytes.fromhex(adapter), keys[int(start)])
        return page_chain(keys, bytes.fromhex(self.namespace))

    @property
    def digest(self) -> str:
        """Over all fields."""
        return _digest(canonical(asdict(self)))


def receipt_of(answer: Answer, issuer: Issuer, weights: Sequence[WeightsSpan]) -> Receipt:
    """O(tokens), some nanoseconds each."""
    work, tokens = answer.work, answer.tokens
    keys = token_array(work.prompt_keys if work.prompt_keys else work.prompt)
    activated = f"@{work.adapter_start}" if work.HasField("adapter_start") else ""
    return Receipt(
        model=issuer.model,
        weights=tuple(weights),
        adapter=work.adapter_digest.hex() + activated,
        media=tuple(
            MediaPlace(digest=item.digest.hex(), offset=item.offset, length=item.length)
            for item in work.media
        ),
        config=issuer.shape,
        numerics=issuer.numerics,
        tokenizer=issuer.tokenizer.digest,
        template=issuer.tokenizer.template_digest,
        sampling=sampling_facts(work.sampling, answer.stops),
        prompt=TokensDigest.of(work.prompt),
        output=TokensDigest.of(tokens),
        finish=sampling_pb2.FinishReason.Name(answer.finish).removeprefix("FINISH_REASON_").lower(),
        namespace=work.namespace.hex(),
        pages=page_chain([*keys, *tokens], work.namespace),
    )


def issued(receipt: Receipt, answer: Answer, detail: Detail) -> dict[str, Any]:
    """The receipt of an answer as JSON: its fields, its digest and, if wanted, the tokens."""
    written = canonical(asdict(receipt))
    found: dict[str, Any] = {**json.loads(written), "digest": _digest(written)}
    if detail is Detail.TOKENS:
        found |= {"prompt_token_ids": list(answer.work.prompt), "token_ids": list(answer.tokens)}
    return found


@dataclass(frozen=True, slots=True)
class Presented:
    """A receipt as a file holds it, which may have been changed."""

    receipt: Receipt
    digest: str
    prompt: Sequence[int] | None
    tokens: Sequence[int] | None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Presented:
        """Raises ReceiptError."""
        fields = dict(value)
        if fields.get("version") != RECEIPT_VERSION:
            found = fields.get("version", "none")
            raise ReceiptError(f"its version is {found}; this program reads version {RECEIPT_VERSION}")
        digest, prompt = str(fields.pop("digest", "")), fields.pop("prompt_token_ids", None)
        tokens = fields.pop("token_ids", None)
        try:
            receipt = _RECEIPT.validate_python(fields)
            read = cls(receipt, digest, _IDS.validate_python(prompt), _IDS.validate_python(tokens))
        except ValidationError as error:
            first = error.errors()[0]
            raise ReceiptError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        firsts = [span.first for span in receipt.weights]
        if firsts[:1] != [0] or any(one >= after for one, after in pairwise(firsts)):
            raise ReceiptError(f"weights: their first tokens are {firsts}, not rising from 0")
        return read

    def changes(self) -> list[str]:
        """Names of the parts that do not have the digest that is written beside them."""
        pairs = (("prompt", self.prompt, self.receipt.prompt), ("output", self.tokens, self.receipt.output))
        changed = [name for name, tokens, of in pairs if tokens is not None and TokensDigest.of(tokens) != of]
        if self.prompt is not None and self.tokens is not None:
            chain = self.receipt.chain(self.prompt, self.tokens)
            changed += ["pages"] * (chain != self.receipt.pages)
        return changed + ["receipt"] * (self.digest != self.receipt.digest)


def sampling_facts(sampling: sampling_pb2.SamplingParams, stops: Iterable[str] = ()) -> dict[str, Any]:
    """The parameters that decide which tokens are sampled, by name, as JSON. The seed is text: programs that
    read numbers as floats would change it."""
    facts: dict[str, Any] = {
        field.name: _value(field.name, value)
        for field, value in sampling.ListFields()
        if field.name not in CHANGE_NO_TOKEN
    }
    if not sampling.temperature:
        facts.pop("seed", None)
    return facts | ({"stop": list(stops)} if stops else {})


def page_chain(keys: Sequence[int], namespace: bytes) -> tuple[str, ...]:
    """Hashes of whole pages, as KV events have them for a page size of 16. O(keys)."""
    hashes = block_hashes(token_array(keys), PAGE_TOKENS, root_hash(PAGE_TOKENS, namespace))
    return tuple(f"{page:016x}" for page in hashes)


def canonical(value: Any) -> bytes:
    """JSON of sorted keys, without spaces, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _value(name: str, value: Any) -> Any:
    if name == "grammar":
        kind = sampling_pb2.GrammarKind.Name(value.kind).removeprefix("GRAMMAR_KIND_").lower()
        return {"kind": kind, "text": value.text}
    if name == "seed":
        return str(value)
    if name == "logit_bias":
        return {str(token): _shortest(bias) for token, bias in value.items()}
    if isinstance(value, float):
        return _shortest(value)
    return value if isinstance(value, int) else list(value)


def _shortest(value: float) -> float | int:
    """The number of fewest digits that is the same float32, as programs of any language write it in JSON."""
    return int(value) if value.is_integer() else float(str(np.float32(value)))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


_RECEIPT: Final = TypeAdapter(Receipt)
_IDS: Final = TypeAdapter(list[Annotated[int, Field(ge=0, lt=1 << 32)]] | None)
