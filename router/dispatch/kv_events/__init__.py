"""Events about cached prefixes, in vLLM's format, for gateways that route by them."""
