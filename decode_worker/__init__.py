"""Decodes from KV that prefill workers computed; in mixed mode it computes the prompts itself."""
