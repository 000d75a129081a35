"""Computes prompts and hands their KV to decode workers."""
