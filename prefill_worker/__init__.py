"""Configuration and Ray actor of prefill workers."""
