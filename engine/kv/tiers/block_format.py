"""How a KV page is kept outside memory: its name, and the header in front of its bytes.

The header has the digest that the KV must have when it is in the pool again. Whatever is wrong with what was
read makes it a miss.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from xxhash import xxh3_64_intdigest

from common.block_hash import BlockHash
from common.block_key import PAGE_KEY_BYTES, PageKey

_MAGIC: Final = b"BatonKV3"
"""With the version: of the header, and of the way in which keys and hashes name a page."""
_FIELDS: Final = struct.Struct(f"<8s32s{PAGE_KEY_BYTES}sQQQ")
"""Magic, identity, key, hash, digest of the KV, bytes of the KV."""
_SUFFIX: Final = ".kv"


class BlockFormat:
    """Format of a stored block, for one model and page layout."""

    header_bytes: Final = _FIELDS.size + 8
    """With the checksum of the fields."""

    def __init__(self, identity: str, page_bytes: int) -> None:
        """`identity`: of weights and layout."""
        self._identity = blake2b(_MAGIC + identity.encode(), digest_size=32).digest()
        self._page_bytes = page_bytes
        self.folder = self._identity.hex()[:16]
        """Name of the folder for what has this identity, in this version."""

    @property
    def total_bytes(self) -> int:
        return self.header_bytes + self._page_bytes

    def path(self, key: PageKey, hash: BlockHash) -> str:
        """Within `folder`, in one of 256 folders."""
        name = key.hex()
        return f"{name[:2]}/{name}-{hash:016x}{_SUFFIX}"

    def header(self, key: PageKey, hash: BlockHash, digest: int) -> bytes:
        fields = _FIELDS.pack(_MAGIC, self._identity, key, hash, digest, self._page_bytes)
        return fields + xxh3_64_intdigest(fields).to_bytes(8, "little")

    def digest_of(self, header: bytes | bytearray, key: PageKey, hash: BlockHash) -> int | None:
        """The digest in a header; None: it is not the one of this page."""
        if len(header) != self.header_bytes:
            return None
        digest = int(_FIELDS.unpack_from(header)[4])
        return digest if header == self.header(key, hash, digest) else None

    @staticmethod
    def parsed(name: str) -> tuple[PageKey, BlockHash] | None:
        """Key and hash in the last part of a path; None: it is not the name of a page."""
        stem, dot, suffix = name.partition(".")
        key, _, hash = stem.partition("-")
        try:
            if dot + suffix == _SUFFIX and len(key) == 2 * PAGE_KEY_BYTES and len(hash) == 16:
                return bytes.fromhex(key), int(hash, 16)
        except ValueError:
            pass
        return None
