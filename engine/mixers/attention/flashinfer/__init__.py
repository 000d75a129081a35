"""Attention by flashinfer's kernels, and by our own for decodes."""
