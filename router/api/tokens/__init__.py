"""Tokens in, tokens out: the generate routes of vLLM and of SGLang, as trainers call them."""
