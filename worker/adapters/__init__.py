"""Adapters of LoRA on a worker: loaded from a folder or from another worker, and given to other workers."""
