"""Ray's key-value store in memory."""

from __future__ import annotations


class KeyValues:
    """Implements `router.cluster.record.KeyValueStore`."""

    def __init__(self) -> None:
        self.values: dict[tuple[bytes, bytes], bytes] = {}

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: bytes, timeout: float
    ) -> int:
        added = (namespace, key) not in self.values
        if added or overwrite:
            self.values[namespace, key] = value
        return int(added)

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None:
        return self.values.get((namespace, key))

    def internal_kv_keys(self, prefix: bytes, namespace: bytes, timeout: float) -> list[bytes]:
        return [key for space, key in self.values if space == namespace and key.startswith(prefix)]

    def internal_kv_del(self, key: bytes, del_by_prefix: bool, namespace: bytes, timeout: float) -> int:
        gone = [
            known
            for known in self.values
            if known[0] == namespace and (known[1].startswith(key) if del_by_prefix else known[1] == key)
        ]
        for known in gone:
            del self.values[known]
        return len(gone)
