"""The receiving side of a worker: reserves pages, takes in KV, admits the request. Every worker has it."""
