"""Ray actor of decode workers, which use the default configuration."""
