"""Attention whose results for a token do not depend on the step."""
