"""The prefill worker: its role, and the sending side of all workers: chunks, handoffs, migrations."""
