"""The decode worker: its role, and the receiving side of all workers, which reserves pages for KV."""
