"""The origin of KV: what it was computed from, which for most requests is the tokens alone.

Two requests may share a page of KV only if the origin of the page is the same: the keys of all positions up
to its end, and the namespace. A key has 64 bits. That of a text position is its token; that of a media
position, whose token is a placeholder, is a hash of the item and of the index within it, with the top bit
set; that of the position at which an adapter is activated, of the adapter and the token. The namespace stands
for what all positions of a request have in common.

Keys are in signed arrays, so that a key with the top bit is negative, and no token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from common.token_array import token_array

Namespace: TypeAlias = bytes
"""Empty, or `NAMESPACE_BYTES` of a cryptographic hash: no other origin with the same one can be found."""

NO_NAMESPACE: Final[Namespace] = b""
"""Namespace of requests without any of the parts of `namespace_of`."""
NAMESPACE_BYTES: Final = 32
_TOP_BIT: Final = 1 << 63
_KEY_BYTES: Final = 8


def namespace_of(*, adapter: bytes = b"", tenant: str = "", cache_salt: str = "") -> Namespace:
    """The namespace of requests with these parts in common; empty if all parts are.

    `adapter`: digest of the whole content of an adapter that is used from the first token on; a name would
    outlive a change of it. `tenant`: if
    tenants share no KV. `cache_salt`: chosen by the client.
    """
    parts = adapter, tenant.encode(), cache_salt.encode()
    if not any(parts):
        return NO_NAMESPACE
    return _hashed(parts)


def with_weights(namespace: Namespace, weights: str) -> Namespace:
    """The namespace of the same requests, computed with other weights.

    `weights`: a name of these that is never used again; empty for those of the start.
    """
    return _hashed((namespace, weights.encode())) if weights else namespace


def _hashed(parts: Sequence[bytes]) -> Namespace:
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake2b(framed, digest_size=NAMESPACE_BYTES, person=b"baton namespace").digest()


def media_keys(item: bytes, positions: range) -> array[int]:
    """Keys of those positions of a media item. `item`: digest of its whole content."""
    hashes = (blake2b(item + i.to_bytes(8, "little"), digest_size=8).digest() for i in positions)
    return array("q", [_no_token(each) for each in hashes])


def activation_key(adapter: bytes, token: int) -> int:
    """Key of the first position that is computed with an adapter, after others without. `adapter`: digest of
    its whole content."""
    content = adapter + token.to_bytes(8, "little")
    return _no_token(blake2b(content, digest_size=8, person=b"baton activation").digest())


def last_invocation(keys: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Position at which the tokens of `invocation` occur last; None: nowhere. O(keys)."""
    text, sought = token_array(keys).tobytes(), token_array(invocation).tobytes()
    at = text.rfind(sought)
    while at > 0 and at % _KEY_BYTES:
        at = text.rfind(sought, 0, at + len(sought) - 1)
    return None if at < 0 else at // _KEY_BYTES


def _no_token(digest: bytes) -> int:
    return (int.from_bytes(digest, "little") | _TOP_BIT) - 2 * _TOP_BIT


def are_keys_of(keys: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether `keys` can be those of `tokens`: each is the token itself, or has the top bit set. O(keys)."""
    return len(keys) == len(tokens) and all(
        key == token or key < 0 for key, token in zip(keys, tokens, strict=True)
    )
