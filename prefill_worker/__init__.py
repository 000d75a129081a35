"""The sending side of a worker: finished chunks, handoffs, migrations. Every worker has it."""
